"""The tests. Each file in laws/ tests an invariant of all ops, with inputs of support/cases.py."""

import torch

# By default torch's recurrent layers round float32 products to TF32, and so do treadle's LSTM and
# GRU. Tests compare with exact products. Those that need TF32 use conftest.py's allow_tf32.
torch.backends.cudnn.allow_tf32 = False
