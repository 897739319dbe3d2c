"""The tests. laws/ has the invariants of every op, one file each, over the inputs in cases.py."""

import torch

# By default torch's recurrent layers round float32 products to TF32, and so do treadle's LSTM and
# GRU. Tests compare with exact products. Those that need TF32 use conftest.py's allow_tf32.
torch.backends.cudnn.allow_tf32 = False
