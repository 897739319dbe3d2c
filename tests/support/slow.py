"""Tests that take long: seconds of a core, all cases of a function or of a file together.

Measured on an AMD EPYC (Zen 4), with child processes; `pytest --durations=0` says what a test takes
on the clock.
"""

SLOW = {
    "tests/benchmarks/test_harness.py::test_some_rows_of_every_suite": 12,
    "tests/benchmarks/test_jax.py": 30,
    "tests/benchmarks/test_layer.py": 20,
    "tests/benchmarks/test_rl.py": 15,
    "tests/benchmarks/test_sweep.py": 13,
    "tests/laws/test_export.py::test_aoti_in_cpp": 10,
    "tests/laws/test_export.py::test_aoti_in_python": 26,
    "tests/laws/test_freed_arguments.py": 60,
    "tests/laws/test_gradients.py::test_every_subset_of_the_layer": 12,
    "tests/laws/test_gradients.py::test_gradgradcheck": 25,
    "tests/laws/test_hypothesis.py": 90,
    "tests/laws/test_math.py::test_a_smaller_instruction_set": 11,
    "tests/laws/test_transforms_compile.py::test_compiled_autograd": 24,
    "tests/laws/test_transforms_compile.py::test_forward_and_backward": 13,
    "tests/laws/test_transforms_compile.py::test_inductor": 21,
    "tests/laws/test_transforms_compile.py::test_transforms_inside": 29,
    "tests/laws/test_transforms_func.py::test_transform": 40,
    "tests/laws/test_transforms_opcheck.py::test_layer": 16,
    "tests/laws/test_transforms_opcheck.py::test_layers": 21,
    "tests/package/test_build_archs.py": 10,
    "tests/package/test_cpp.py": 30,
    "tests/package/test_examples.py": 52,
    "tests/package/test_examples_agent.py": 17,
    "tests/package/test_examples_characters.py": 15,
    "tests/package/test_examples_fields.py": 20,
    "tests/package/test_examples_lm.py": 36,
    "tests/package/test_examples_ppo.py": 20,
    "tests/package/test_examples_siren.py": 20,
    "tests/package/test_import.py": 50,
    "tests/package/test_new_op.py::test_the_skeleton_of_an_op": 300,
    "tests/recurrent/test_autocast_torch.py::test_dtypes_and_values_are_torchs": 110,
    "tests/recurrent/test_cells.py::test_by_the_rule": 25,
    "tests/recurrent/test_cells.py::test_derivatives_of_second_order": 40,
    "tests/recurrent/test_composition.py::test_tangents_and_second_derivatives": 30,
    "tests/recurrent/test_hypothesis_cell.py": 29,
    "tests/sine_linear/test_memory.py": 14,
}
