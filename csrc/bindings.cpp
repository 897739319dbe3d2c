// treadle._C: what is not a tensor op. It includes no torch header, so that it compiles in seconds
// and only libtreadle.so depends on torch's version.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "recurrent/cell.h"
#include "recurrent/plan.h"
#include "treadle/info.h"

namespace py = pybind11;

namespace {

py::tuple triple(const unsigned (&extent)[3]) {
  return py::make_tuple(extent[0], extent[1], extent[2]);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  using treadle::Launch;
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
      .def_readonly("algorithm", &Launch::algorithm)
      .def_readonly("reason", &Launch::reason);
  m.def("record_launches", &treadle::record_launches, py::arg("on"));
  m.def("take_launches", &treadle::take_launches);
  m.def("compiled_with", &treadle::compiled_with);

  py::class_<treadle::RecurrencePlan>(m, "RecurrencePlan")
      .def_property_readonly("algorithm",
                             [](const treadle::RecurrencePlan& p) { return p.algorithm; })
      .def_property_readonly("reason", [](const treadle::RecurrencePlan& p) { return p.reason; })
      .def_readonly("steps_per_chunk", &treadle::RecurrencePlan::steps_per_chunk)
      .def_readonly("transposed", &treadle::RecurrencePlan::transposed)
      .def_property_readonly("clusters",
                             [](const treadle::RecurrencePlan& p) {
                               const auto& [shape, rows] = p.clusters;
                               return py::make_tuple(shape.units, shape.blocks, shape.tiles, rows);
                             })
      .def_readonly("grid_rows", &treadle::RecurrencePlan::grid_rows);
  m.def(
      "plan_recurrence",
      [](const std::string& cell, int64_t steps, int64_t batch, int64_t hidden,
         int64_t element_size, bool cuda, int multiprocessors, size_t l2_bytes, bool tf32,
         const std::string& forced, int64_t directions, int architecture, bool backward) {
        const auto dtype = element_size == 8   ? treadle::Dtype::kDouble
                           : element_size == 4 ? treadle::Dtype::kFloat
                                               : treadle::Dtype::kHalf;
        constexpr const char* op = "recurrent_layer";
        const auto kind = treadle::find_cell(op, cell);
        return treadle::plan_recurrence(op, {kind, steps, batch, hidden, directions, dtype},
                                        {cuda, architecture, multiprocessors, l2_bytes, tf32},
                                        forced, backward);
      },
      py::arg("cell"), py::arg("steps"), py::arg("batch"), py::arg("hidden"),
      py::arg("element_size"), py::arg("cuda"), py::arg("multiprocessors"), py::arg("l2_bytes"),
      py::arg("tf32"), py::arg("forced"), py::arg("directions") = 1, py::arg("architecture") = 0,
      py::arg("backward") = false);
}
