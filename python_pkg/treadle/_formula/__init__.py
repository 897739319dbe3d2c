"""Recurrent cells from formulas: treadle.Cell."""
