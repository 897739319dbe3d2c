"""Builds treadle's binaries with ninja, for setup.py, which calls `build.build`.

`host` inspects the machine and torch, and `cuda` inspects the toolkit. `graph` writes the ninja
file. `build` runs ninja and writes facts.json, a record of the build.
"""
