// Checks the arguments of the ops of layers.cpp: lengths of lists, shapes, dtypes and memory.
#include "common/check.h"
#include "recurrent/layer/check.h"
#include "recurrent/lists/layers.h"

namespace treadle {

static void check_reset_hx(const Layers& a) {
  const char* const op = a.op();
  const size_t states = a.states();
  TORCH_CHECK(a.reset_hx.empty() || a.reset_hx.size() == states, op,
              ": reset_hx must have a tensor for h and, if the cell has c, one for c, got ",
              a.reset_hx.size());
  const char* names[] = {"reset_hx[0]", "reset_hx[1]"};
  for (size_t k = 0; k < a.reset_hx.size(); ++k) {
    const Tensor& t = a.reset_hx[k];
    TORCH_CHECK(
        (t.dim() == 3 || t.dim() == 4) && t.sym_size(0) == a.num_layers * a.directions(), op, ": ",
        a.has_c() ? names[k] : "reset_hx",
        " must have shape [L*D, B, H], or [L*D, T, B, H] with a state for each step, with L*D = ",
        a.num_layers * a.directions(), ", got ", t.sym_sizes());
  }
}

static void check_lists(const Layers& a) {
  const char* const op = a.op();
  const int64_t directions = a.directions(), each = a.each();
  if (!(a.zeros && a.hx.empty())) {
    TORCH_CHECK(a.hx.size() == a.states(), op, ": hx must be ",
                a.has_c() ? "two tensors, h0 and c0" : "one tensor, h0", ", got ", a.hx.size());
  }
  TORCH_CHECK(a.num_layers >= 1, op, ": num_layers must be at least 1, got ", a.num_layers);
  const int64_t count = a.num_layers * directions * each;
  TORCH_CHECK(static_cast<int64_t>(a.params.size()) == count, op, ": params must have ", each,
              " tensors per layer and direction, ", count, " in total (num_layers=", a.num_layers,
              ", bidirectional=", a.bidirectional ? "True" : "False", "), got ", a.params.size());
  // Directions are stacked later, which would silently promote different dtypes.
  for (int64_t k = 0; k < count; ++k) {
    if (k / each % directions == 0) continue;
    const std::string name = "params[" + std::to_string(k) + "]";
    const std::string first = "params[" + std::to_string(k - each) + "]";
    check_like(op, name.c_str(), a.params[k], first.c_str(), a.params[k - each]);
    check_same_shape(op, name.c_str(), a.params[k], first.c_str(), a.params[k - each]);
  }
  check_reset_hx(a);
  const char* names[] = {"h0", "c0"};
  for (size_t k = 0; k < a.hx.size(); ++k) {
    TORCH_CHECK(a.hx[k].dim() == 3 && a.hx[k].sym_size(0) == a.num_layers * directions, op, ": ",
                names[k], " must have shape [L*D, B, H] with L*D = ", a.num_layers * directions,
                ", got ", a.hx[k].sym_sizes());
  }
}

// Checks the memory of all arguments before any is read. recurrent_layer's checks are not enough:
// ATen ops read the weights of two directions before it is called, and it sees one layer at a time.
static void check_all_storages(const char* input_name, const Tensor& input,
                               const OptionalTensor& batch_sizes, const Layers& a) {
  check_composite_storage(a.op(), input_name, input);
  if (batch_sizes) check_composite_storage(a.op(), "batch_sizes", *batch_sizes);
  const char* names[] = {"h0", "c0"};
  for (size_t k = 0; k < a.hx.size(); ++k) check_composite_storage(a.op(), names[k], a.hx[k]);
  if (a.reset) check_composite_storage(a.op(), "reset", *a.reset);
  for (const Tensor& t : a.reset_hx) check_composite_storage(a.op(), "reset_hx", t);
  for (size_t k = 0; k < a.params.size(); ++k) {
    const std::string name = "params[" + std::to_string(k) + "]";
    check_composite_storage(a.op(), name.c_str(), a.params[k]);
  }
}

void check_layers(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& a) {
  check_lists(a);
  check_all_storages(batch_sizes ? "data" : "input", input, batch_sizes, a);
}

}  // namespace treadle
