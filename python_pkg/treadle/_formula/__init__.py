"""Recurrent cells that a formula defines: treadle.Cell."""
