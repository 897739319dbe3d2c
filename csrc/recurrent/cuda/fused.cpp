// Algorithms "tiles" and "warp" of recurrent_layer on CUDA, in which one launch runs a whole step.
// Operands whose layout the kernels cannot read are copied.
#include <ATen/Functions.h>

#include "kernels/recurrent/fused_args.h"
#include "kernels/recurrent/launchers.h"
#include "recurrent/cuda/layer.h"

namespace treadle {
namespace {

// The two buffers for h of direction d, which alternate: h before a step, and h after it.
struct Turns {
  Tensor before, after;

  // A single step only reads the h before it, so it may read h0 itself.
  Turns(const LayerRun& run, int64_t d, const Tensor& first_h, const Tensor& h) {
    if (first_h.defined() && run.sizes.steps == 1) {
      before = after = first_h[d];
      return;
    }
    const Tensor states = at::empty({2, h.size(1), h.size(2)}, h.options());
    before = states[0].copy_(first_h.defined() ? first_h[d] : h[d]);
    after = states[1];
    // In the reverse direction, rows of a packed batch begin at different steps, so h0 must be in
    // both buffers.
    if (run.arguments.time_direction(d) == 1 && run.arguments.batch_sizes.defined())
      after.copy_(h[d]);
  }
};

// Uses const_data_ptr, because mutable_data_ptr would copy an h0 whose storage is copy-on-write.
void* data_of_turn(const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); }

// Whether rows can be read 16 bytes at a time.
bool in_chunks(const Tensor& rows) {
  return rows.stride(1) == 1 && rows.stride(0) * rows.element_size() % 16 == 0 &&
         begins_at_16_bytes(rows);
}

// Pads rows with zeros to multiples of 16 bytes, the unit in which the kernels of "tiles" read.
Tensor as_chunks(const Tensor& rows) {
  const int64_t width = rows.size(1), each = 16 / rows.element_size();
  const int64_t missing = width == 0 ? each : (each - width % each) % each;
  if (missing > 0) return at::constant_pad_nd(rows, {0, missing});
  return in_chunks(rows) ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

// Rows for the kernels of "warp". Only the sizes decide whether these kernels read vectors, so that
// the order of their sums does not depend on alignment.
Tensor as_vectors(const Tensor& rows) {
  const bool readable = rows.size(1) % 4 == 0 ? in_chunks(rows) : rows.stride(1) == 1;
  return readable ? rows : rows.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

void fused_forward_cuda(const LayerRun& run, const ForwardDirection& direction,
                        cudaStream_t stream) {
  const char* const op = layer_op_name();
  const bool tiles = run.plan.kernel == KernelId::kTiles;
  const Tensor &x = direction.input, &w_ih = direction.weight_ih;
  const Tensor input = tiles ? as_chunks(x) : as_vectors(x), of_h = aligned(direction.weight_hh);
  const Tensor of_input = aligned(tiles ? as_chunks(w_ih) : w_ih);
  const Turns turns(run, direction.d, direction.first_h, direction.h);
  const FusedForward args{
      direction.all,         of_input.const_data_ptr(),
      of_h.const_data_ptr(), input.const_data_ptr(),
      input.stride(0),       input.size(1),
      input.size(0),         {data_of_turn(turns.before), data_of_turn(turns.after)}};
  if (!tiles) return check_launch(op, launch_warp_forward(args, stream));
  const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  check_launch(op, launch_tiles_forward(args, processors, stream));
}

}  // namespace treadle
