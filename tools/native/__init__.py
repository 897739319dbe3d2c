"""Builds treadle's binaries with ninja; setup.py calls it.

`host` inspects the machine and torch, and `cuda` inspects the toolkit. `graph` writes the ninja
file. `build` runs ninja and writes facts.json, a record of the build.
"""
