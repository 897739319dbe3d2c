"""The tests. Each file in laws/ tests an invariant of all ops, with inputs of support/cases.py."""

import torch

# By default torch's recurrent layers round float32 products to TF32, and so do treadle's LSTM and
# GRU. Tests compare with exact products, so this is switched off here. Tests that need TF32 use the
# fixture allow_tf32 of conftest.py.
torch.backends.cudnn.allow_tf32 = False
