"""Builds treadle's binaries with ninja; setup.py calls it.

`host` inspects the machine and torch, `cuda` the toolkit, `graph` writes the ninja file, and
`build` runs it and writes the build facts.
"""
