"""What is not a tensor op: see csrc/bindings.cpp."""

class Launch:
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    vector_width: int
    elements_per_thread: int
    registers: int
    shared_bytes: int
    local_bytes: int
    blocks_per_sm: int
    occupancy: float

def record_launches(on: bool) -> None: ...
def take_launches() -> list[Launch]: ...
def compiled_with() -> str: ...
