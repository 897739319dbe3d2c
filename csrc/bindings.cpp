// treadle._C: what is not a tensor op. It includes no torch header, so that it compiles in seconds
// and only libtreadle.so depends on torch's version.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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
      .def_readonly("occupancy", &Launch::occupancy);
  m.def("record_launches", &treadle::record_launches, py::arg("on"));
  m.def("take_launches", &treadle::take_launches);
  m.def("compiled_with", &treadle::compiled_with);
}
