"""The tests. laws/ has the invariants of every op, one file each, over the inputs in cases.py."""

import torch

# Torch's recurrent layers round float32 products to tf32 unless told otherwise, and so do LSTM and
# GRU. Tests compare with exact products; those that need tf32 use conftest.py's allow_tf32.
torch.backends.cudnn.allow_tf32 = False
