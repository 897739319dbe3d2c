"""Checks of arguments that the public functions and the modules share, and their error texts."""
