"""Layers whose cells are formulas (treadle.Cell). `make new-cell` adds a layer."""

from .ligru import LIGRU_CELL, LiGRU
from .mgu import MGU, MGU_CELL
from .peepholelstm import PEEPHOLELSTM_CELL, PeepholeLSTM
from .slstm import SLSTM, SLSTM_CELL

CELLS = {
    "LiGRU": LIGRU_CELL,
    "MGU": MGU_CELL,
    "PeepholeLSTM": PEEPHOLELSTM_CELL,
    "SLSTM": SLSTM_CELL,
}

__all__ = [
    "CELLS",
    "LiGRU",
    "MGU",
    "PeepholeLSTM",
    "SLSTM",
]
