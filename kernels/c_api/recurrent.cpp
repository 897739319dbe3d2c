// The functions of kernels.h for recurrent layers. They check the arguments, then call the code for
// the device.
#include "kernels/c_api/recurrent.h"

#include <algorithm>
#include <vector>

#include "kernels/c_api/arrays.h"

namespace treadle {
namespace {

// A contiguous argument of a call. If it is written, it must not overlap any other argument.
struct Block {
  const char* name;
  const void* data;
  int64_t count;
  Dtype dtype;
  bool optional, written;
};

// Checks that every block is aligned memory of the device and overlaps no other block that is
// written.
void check_blocks(const CLayer& layer, const std::vector<Block>& blocks) {
  const int64_t alignment = layer.device.type == TREADLE_CUDA ? 16 : 1;
  const auto as_array = [](const Block& block) {
    return treadle_array{sizeof(treadle_array), const_cast<void*>(block.data),
                         &block.count,
                         /*strides=*/nullptr,   1,
                         number_of(block.dtype)};
  };
  for (const Block& block : blocks) {
    if (block.data == nullptr && (block.optional || block.count == 0)) continue;
    check_data(layer.device, block.name, "", as_array(block),
               std::max<int64_t>(alignment, size_of(block.dtype)));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = 0; j < blocks.size(); ++j) {
      const Block &one = blocks[i], &other = blocks[j];
      if (i == j || !one.written || one.data == nullptr || other.data == nullptr) continue;
      const char *a = static_cast<const char*>(one.data), *b = static_cast<const char*>(other.data);
      require(
          a >= b + other.count * size_of(other.dtype) || b >= a + one.count * size_of(one.dtype),
          one.name, " must share no memory with ", other.name, ", got one that overlaps");
    }
  }
}

size_t workspace_of(const CLayer& layer, bool backward) {
  return layer.device.type == TREADLE_CPU ? workspace_on_cpu(layer)
                                          : workspace_on_cuda(layer, backward);
}

Block workspace_block(const CLayer& layer, bool backward, const void* workspace, size_t bytes) {
  const size_t needed = workspace_of(layer, backward);
  require(bytes >= needed, "workspace_bytes must be at least ", needed, ", got ", bytes);
  require(reinterpret_cast<uintptr_t>(workspace) % 256 == 0,
          "workspace must be aligned to 256 bytes, got ", workspace);
  return {"workspace", workspace, static_cast<int64_t>(needed), Dtype::kUInt8, false, true};
}

}  // namespace

CLayer CLayer::checked(const treadle_device* device, const treadle_recurrent* given) {
  check_device(device);
  require_struct("layer", given);
  require(given->cell >= TREADLE_LLTM && given->cell <= TREADLE_RNN_RELU,
          "layer.cell must be TREADLE_LLTM, TREADLE_LSTM, TREADLE_GRU, TREADLE_RNN_TANH or "
          "TREADLE_RNN_RELU, got ",
          given->cell);
  require(given->directions == 1 || given->directions == 2, "layer.directions must be 1 or 2, got ",
          given->directions);
  // With these limits no product of sizes overflows 64 bits.
  const auto check_size = [](const char* name, int64_t size, int bits) {
    require(size >= 1 && size < int64_t{1} << bits, "layer.", name,
            " must be at least 1 and less than 2^", bits, ", got ", size);
  };
  check_size("steps", given->steps, 31);
  check_size("batch", given->batch, 31);
  check_size("hidden", given->hidden, 24);
  const Dtype dtype = dtype_of("layer", given->dtype);
  const Dtype c_dtype = dtype_of("layer", given->c_dtype, ".c_dtype");
  const CellKind kind = kCellKinds[given->cell];
  const double elements = 4.0 * static_cast<double>(given->steps) *
                          static_cast<double>(given->batch) * static_cast<double>(given->hidden);
  require(elements < 4.6e17, "layer must have fewer than 4.6e17 gates, got ", elements);
  require(dtype >= Dtype::kHalf, "layer.dtype must be floating-point, got ", dtype_name(dtype));
  require(c_dtype == dtype || (is_half(dtype) && c_dtype == Dtype::kFloat),
          "layer.c_dtype must be layer.dtype, ", dtype_name(dtype),
          is_half(dtype) ? ", or float32" : "", ", got ", dtype_name(c_dtype));
  require(has_c(kind) || !is_half(dtype) || c_dtype == Dtype::kFloat,
          "layer.c_dtype must be float32 for GRU and RNN in half types, got ", dtype_name(c_dtype));
  if (device->type == TREADLE_CPU && is_half(dtype)) {
    raise(TREADLE_UNSUPPORTED, "layer.dtype must be float32 or float64 on the CPU, got ",
          dtype_name(dtype), ": convert the arrays to float32");
  }
  return {*device,
          {kind, given->steps, given->batch, given->hidden, given->directions, dtype},
          cell_info(kind),
          c_dtype};
}

}  // namespace treadle

using namespace treadle;

int treadle_recurrent_workspace(const treadle_device* device, const treadle_recurrent* layer,
                                int backward, size_t* bytes) {
  return guarded([&] {
    require(bytes != nullptr, "bytes must point to a size_t, got NULL");
    *bytes = workspace_of(CLayer::checked(device, layer), backward != 0);
  });
}

int treadle_recurrent_forward(const treadle_device* device, const treadle_recurrent* layer,
                              const treadle_recurrent_inputs* in,
                              const treadle_recurrent_outputs* out, void* workspace,
                              size_t workspace_bytes) {
  return guarded([&] {
    const CLayer l = CLayer::checked(device, layer);
    require_struct("inputs", in);
    require_struct("outputs", out);
    const int64_t directions = l.sizes.directions, hidden = l.sizes.hidden;
    const int64_t states = directions * l.units(),
                  weights = directions * l.cell.state_gates * hidden;
    const Dtype dtype = l.sizes.dtype;
    require(in->bias_hh == nullptr || has_bias_hh(l.sizes.cell),
            "inputs.bias_hh must be NULL for TREADLE_LLTM, which has one bias, got ", in->bias_hh);
    check_blocks(
        l, {{"inputs.products", in->products, directions * l.rows() * l.cell.input_gates * hidden,
             dtype, false, false},
            {"inputs.weight_hh", in->weight_hh, weights * hidden, dtype, false, false},
            {"inputs.bias_ih", in->bias_ih, directions * l.cell.input_gates * hidden, dtype, true,
             false},
            {"inputs.bias_hh", in->bias_hh, weights, dtype, true, false},
            {"inputs.h0", in->h0, states, dtype, false, false},
            {"inputs.c0", in->c0, states, l.c_dtype, false, false},
            {"outputs.output", out->output, l.rows() * directions * hidden, dtype, false, true},
            {"outputs.h_n", out->h_n, states, dtype, false, true},
            {"outputs.c_n", out->c_n, states, l.c_dtype, false, true},
            {"outputs.gates", out->gates, directions * l.rows() * l.width(), dtype, true, true},
            workspace_block(l, false, workspace, workspace_bytes)});
    (device->type == TREADLE_CPU ? forward_on_cpu : forward_on_cuda)(l, {*in, *out, workspace});
  });
}

int treadle_recurrent_backward(const treadle_device* device, const treadle_recurrent* layer,
                               const treadle_recurrent_saved* in,
                               const treadle_recurrent_grads* out, void* workspace,
                               size_t workspace_bytes) {
  return guarded([&] {
    const CLayer l = CLayer::checked(device, layer);
    require_struct("saved", in);
    require_struct("grads", out);
    const int64_t directions = l.sizes.directions, hidden = l.sizes.hidden;
    const int64_t states = directions * l.units(), all = directions * l.rows() * l.width();
    const Dtype dtype = l.sizes.dtype;
    check_blocks(l, {{"saved.gates", in->gates, all, dtype, false, false},
                     {"saved.weight_hh", in->weight_hh,
                      directions * l.cell.state_gates * hidden * hidden, dtype, false, false},
                     {"saved.c0", in->c0, states, l.c_dtype, false, false},
                     {"saved.grad_output", in->grad_output, l.rows() * directions * hidden, dtype,
                      true, false},
                     {"saved.grad_h_n", in->grad_h_n, states, dtype, true, false},
                     {"saved.grad_c_n", in->grad_c_n, states, l.c_dtype, true, false},
                     {"grads.gates", out->gates, all, dtype, false, true},
                     {"grads.h0", out->h0, states, dtype, false, true},
                     {"grads.c0", out->c0, states, l.c_dtype, false, true},
                     workspace_block(l, true, workspace, workspace_bytes)});
    (device->type == TREADLE_CPU ? backward_on_cpu : backward_on_cuda)(l, {*in, *out, workspace});
  });
}
