"""Modules that run on treadle's kernels and follow the conventions of torch.nn."""

from .formulas import MGU, SLSTM, LiGRU, PeepholeLSTM
from .lltm import LLTM
from .lltm_cell import LLTMCell
from .recurrent import Recurrent
from .replace import Replaced, replace, restore
from .rnn import GRU, LSTM, RNN
from .rnn_cells import GRUCell, LSTMCell, RNNCell
from .sine_linear import SineLinear
from .siren import Siren
from .snake import Snake
from .step import Step, make_step
from .training_step import TrainingStep, make_training_step

__all__ = [
    "GRU",
    "GRUCell",
    "LLTM",
    "LLTMCell",
    "LSTM",
    "LSTMCell",
    "LiGRU",
    "MGU",
    "PeepholeLSTM",
    "RNN",
    "RNNCell",
    "Recurrent",
    "Replaced",
    "SLSTM",
    "SineLinear",
    "Siren",
    "Snake",
    "Step",
    "TrainingStep",
    "make_step",
    "make_training_step",
    "replace",
    "restore",
]
