"""The module treadle._C, which csrc/bindings.cpp defines. It contains no tensor ops."""

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
    family: str
    algorithm: str
    reason: str

class RecurrencePlan:
    algorithm: str
    kernel: str
    reason: str
    steps_per_chunk: int
    transposed: bool
    weight_by_columns: bool
    clusters: tuple[int, int, int, int]
    grid_rows: int
    grid_directions: int

def record_launches(on: bool) -> None: ...
def take_launches() -> list[Launch]: ...
def plan_recurrence(
    cell: str,
    steps: int,
    batch: int,
    hidden: int,
    element_size: int,
    cuda: bool,
    multiprocessors: int,
    l2_bytes: int,
    tf32: bool,
    forced: str,
    directions: int = 1,
    architecture: int = 0,
    backward: bool = False,
    ragged: bool = False,
    shared_bytes: int = ...,
    clock_mhz: int = ...,
    resets: bool = False,
) -> RecurrencePlan: ...
