// treadle._C: functions of libtreadle_kernels.so that are not tensor ops. This file includes no
// torch header, so it compiles in seconds and works with every version of torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/recurrent/plan/scope.h"
#include "treadle/kernels.h"

namespace py = pybind11;

namespace {

struct Launch : treadle_launch {
  std::string kernel;  // a copy, because treadle_clear_launches frees the library's string
};

py::tuple triple(const uint32_t (&extent)[3]) {
  return py::make_tuple(extent[0], extent[1], extent[2]);
}

std::vector<Launch> take_launches() {
  std::vector<Launch> taken;
  for (int64_t i = 0; i < treadle_launch_count(); ++i) {
    treadle_launch launch{};
    launch.struct_size = sizeof(launch);
    if (treadle_get_launch(i, &launch) != TREADLE_OK) {
      throw std::runtime_error(treadle_error_text());
    }
    taken.push_back({launch, launch.kernel});
  }
  treadle_clear_launches();
  return taken;
}

treadle::RecurrencePlan plan_recurrence(const std::string& cell, int64_t steps, int64_t batch,
                                        int64_t hidden, int64_t element_size, bool cuda,
                                        int multiprocessors, size_t l2_bytes, bool tf32,
                                        const std::string& forced, int64_t directions,
                                        int architecture, bool backward, bool ragged,
                                        size_t shared_bytes, int clock_mhz, bool resets) {
  using treadle::Dtype;
  const Dtype dtype = element_size == 8   ? Dtype::kDouble
                      : element_size == 4 ? Dtype::kFloat
                                          : Dtype::kHalf;
  const treadle::CellKind* const kind = treadle::cell_named(cell);
  if (kind == nullptr) throw std::runtime_error("plan_recurrence: there is no cell " + cell);
  treadle::RecurrencePlan plan;
  const char* const refusal = treadle::plan_recurrence(
      {*kind, steps, batch, hidden, directions, dtype, /*packed=*/ragged, resets},
      {cuda, architecture, multiprocessors, l2_bytes, tf32, shared_bytes, clock_mhz}, forced,
      backward, &plan);
  if (refusal != nullptr) throw std::runtime_error(std::string("recurrent_layer: ") + refusal);
  return plan;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  py::class_<Launch>(m, "Launch")
      .def_readonly("kernel", &Launch::kernel)
      .def_property_readonly("grid", [](const Launch& launch) { return triple(launch.grid); })
      .def_property_readonly("block", [](const Launch& launch) { return triple(launch.block); })
      .def_readonly("vector_width", &Launch::vector_width)
      .def_readonly("elements_per_thread", &Launch::elements_per_thread)
      .def_readonly("registers", &Launch::registers)
      .def_readonly("shared_bytes", &Launch::shared_bytes)
      .def_readonly("local_bytes", &Launch::local_bytes)
      .def_readonly("blocks_per_sm", &Launch::blocks_per_sm)
      .def_readonly("occupancy", &Launch::occupancy)
      .def_property_readonly("family", [](const Launch& launch) { return launch.family; })
      .def_property_readonly("algorithm", [](const Launch& launch) { return launch.algorithm; })
      .def_property_readonly("reason", [](const Launch& launch) { return launch.reason; });
  m.def("record_launches", [](bool on) { treadle_record_launches(on); }, py::arg("on"));
  m.def("take_launches", take_launches);

  py::class_<treadle::RecurrencePlan>(m, "RecurrencePlan")
      .def_property_readonly("algorithm",
                             [](const treadle::RecurrencePlan& p) { return p.algorithm_name(); })
      .def_property_readonly("kernel",
                             [](const treadle::RecurrencePlan& p) { return p.kernel_name(); })
      .def_property_readonly("reason", [](const treadle::RecurrencePlan& p) { return p.reason; })
      .def_readonly("steps_per_chunk", &treadle::RecurrencePlan::steps_per_chunk)
      .def_readonly("transposed", &treadle::RecurrencePlan::transposed)
      .def_readonly("weight_by_columns", &treadle::RecurrencePlan::weight_by_columns)
      .def_property_readonly("clusters",
                             [](const treadle::RecurrencePlan& p) {
                               return py::make_tuple(p.shape.units, p.shape.blocks, p.shape.tiles,
                                                     p.shape.units > 0 ? p.rows : 0);
                             })
      .def_property_readonly("grid_rows",
                             [](const treadle::RecurrencePlan& p) { return p.grid() ? p.rows : 0; })
      .def_readonly("grid_directions", &treadle::RecurrencePlan::directions);
  m.def("plan_recurrence", plan_recurrence, py::arg("cell"), py::arg("steps"), py::arg("batch"),
        py::arg("hidden"), py::arg("element_size"), py::arg("cuda"), py::arg("multiprocessors"),
        py::arg("l2_bytes"), py::arg("tf32"), py::arg("forced"), py::arg("directions") = 1,
        py::arg("architecture") = 0, py::arg("backward") = false, py::arg("ragged") = false,
        py::arg("shared_bytes") = treadle::kMostSharedBytes,
        py::arg("clock_mhz") = treadle::kHopperMhz, py::arg("resets") = false);
}
