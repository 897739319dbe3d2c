// The functions of kernels.h for the pointwise parts of the LLTM cell and of the sine layer.
#include "kernels/c_api/arrays.h"
#include "kernels/c_api/cuda.h"
#include "kernels/c_api/threads.h"
#include "kernels/common/cpu/subnormals.h"
#include "kernels/recurrent/lltm_cell/cpu/cell.h"
#include "kernels/sine_linear/cpu/sine_linear.h"
#ifdef TREADLE_CUDA_VERSION
#include "kernels/recurrent/lltm_cell/launchers.h"
#include "kernels/sine_linear/launchers.h"
#endif

namespace treadle {
namespace {

constexpr int64_t kGrain = 8192;  // minimum elements per thread

Dtype acc_of(Dtype dtype) { return is_half(dtype) ? Dtype::kFloat : dtype; }

// An array of a call and what is required of it.
struct Expected {
  NamedArray given;
  bool optional;
  std::vector<int64_t> sizes;
  bool contiguous;
};

bool is_contiguous(const treadle_array& array) {
  const std::vector<int64_t> strides = strides_of(array);
  int64_t expected = 1;
  for (int d = array.ndim - 1; d >= 0; --d) {
    if (array.sizes[d] != 1 && strides[d] != expected) return false;
    expected *= array.sizes[d];
  }
  return true;
}

void check(const treadle_device& device, const Expected& e) {
  const auto& [name, array] = e.given;
  if (array == nullptr && e.optional) return;
  check_array(device, e.given);
  const std::vector<int64_t> got(array->sizes, array->sizes + array->ndim);
  require(got == e.sizes, name, " must have sizes ", listed(e.sizes.data(), e.sizes.size()),
          ", got ", listed(array->sizes, array->ndim));
  require(!e.contiguous || count_of(*array) == 0 || is_contiguous(*array), name,
          " must be contiguous, got strides ", listed(strides_of(*array).data(), array->ndim));
}

void check_dtype(const NamedArray& given, Dtype wanted, const char* or_else = "") {
  if (given.array == nullptr) return;
  const Dtype found = dtype_of(given.name, given.array->dtype);
  require(found == wanted, given.name, ".dtype must be ", dtype_name(wanted), or_else, ", got ",
          dtype_name(found));
}

Dtype check_floating(const NamedArray& given) {
  const Dtype found = dtype_of(given.name, given.array->dtype);
  require(found >= Dtype::kHalf, given.name, ".dtype must be floating-point, got ",
          dtype_name(found));
  return found;
}

// An output may be one of the inputs; otherwise it must share no memory with any array of the call.
void check_memories(std::initializer_list<NamedArray> written,
                    std::initializer_list<NamedArray> read) {
  for (auto out = written.begin(); out != written.end(); ++out) {
    if (out->array == nullptr) continue;
    for (const NamedArray& in : read) {
      if (in.array != nullptr) check_memory(*out, {in});
    }
    // Positions in the list are compared, because the caller may pass one struct for two arrays.
    for (auto other = out + 1; other != written.end(); ++other) {
      if (other->array != nullptr) check_apart(*out, *other);
    }
  }
}

void* data_of(const treadle_array* array) { return array == nullptr ? nullptr : array->data; }

// ---- LLTM cell

LltmView view_of(const treadle_array* array) {
  if (array == nullptr) return {};
  const std::vector<int64_t> strides = strides_of(*array);
  if (array->ndim == 1) return {array->data, 0, 0, strides[0]};
  return {array->data, 0, strides[0], strides[1]};
}

struct LltmCall {
  int64_t rows = 0, hidden = 0;
  Dtype dtype{}, cell_dtype{};

  LltmCall(const treadle_device* device, const NamedArray& gates, const NamedArray& bias,
           const NamedArray& cell) {
    check_device(device);
    check_array(*device, gates);
    require(gates.array->ndim == 2 && gates.array->sizes[1] % 3 == 0,
            "gates must have sizes [B, 3H], got ", listed(gates.array->sizes, gates.array->ndim));
    rows = gates.array->sizes[0];
    hidden = gates.array->sizes[1] / 3;
    dtype = check_floating(gates);
    check(*device, {bias, /*optional=*/true, {3 * hidden}, false});
    check_dtype(bias, dtype);
    check(*device, {cell, false, {rows, hidden}, false});
    cell_dtype = check_floating(cell);
    require(cell_dtype == dtype || (is_half(dtype) && cell_dtype == Dtype::kFloat), cell.name,
            ".dtype must be that of gates, ", dtype_name(dtype),
            is_half(dtype) ? ", or float32" : "", ", got ", dtype_name(cell_dtype));
  }

  void units(const treadle_device& device, const NamedArray& given, bool optional, Dtype wanted,
             bool contiguous, int64_t blocks = 1) const {
    check(device, {given, optional, {rows, blocks * hidden}, contiguous});
    check_dtype(given, wanted);
  }

  LltmShape shape() const { return {dtype, cell_dtype, 1, rows, hidden}; }
};

#ifdef TREADLE_CUDA_VERSION
#define TREADLE_LAUNCH(device, call)                        \
  {                                                         \
    const cuda::Guard guard(*(device));                     \
    const cudaStream_t stream = cuda::stream_of(*(device)); \
    cuda::check(call);                                      \
  }
#else
#define TREADLE_LAUNCH(device, call) \
  {                                  \
  }
#endif

// Calls f(begin, end) for ranges of the elements. Subnormals are flushed, as in treadle's torch
// ops.
template <class F>
void run_cpu(const treadle_device& device, int64_t count, const F& f) {
  in_parallel(device, count, kGrain, [&](int64_t begin, int64_t end) {
    const cpu::FlushSubnormals flush;
    f(begin, end);
  });
}

// ---- sine layer

Dtype phase_of(Dtype dtype) { return dtype == Dtype::kDouble ? dtype : Dtype::kInt16; }

// A call of the sine layer. `model`, an array [R, O], determines the sizes and the dtype of the
// other arrays.
struct SineCall {
  std::vector<int64_t> sizes;
  Dtype dtype{};

  SineCall(const treadle_device* device, const NamedArray& model) {
    check_device(device);
    check_array(*device, model);
    require(model.array->ndim == 2, model.name, " must have sizes [R, O], got ",
            listed(model.array->sizes, model.array->ndim));
    sizes = {model.array->sizes[0], model.array->sizes[1]};
    dtype = check_floating(model);
    check(*device, {model, false, sizes, true});
  }

  int64_t count() const { return sizes[0] * sizes[1]; }

  void take(const treadle_device& device, const NamedArray& given, bool optional,
            Dtype wanted) const {
    check(device, {given, optional, sizes, true});
    check_dtype(given, wanted);
  }
};

}  // namespace
}  // namespace treadle

using namespace treadle;

int treadle_lltm_cell(const treadle_device* device, const treadle_array* gates,
                      const treadle_array* bias, const treadle_array* old_cell,
                      const treadle_array* new_h, const treadle_array* new_cell) {
  return guarded([&] {
    const LltmCall call(device, {"gates", gates}, {"bias", bias}, {"old_cell", old_cell});
    call.units(*device, {"new_h", new_h}, false, call.dtype, true);
    call.units(*device, {"new_cell", new_cell}, false, call.cell_dtype, true);
    check_memories({{"new_h", new_h}, {"new_cell", new_cell}},
                   {{"gates", gates}, {"bias", bias}, {"old_cell", old_cell}});
    const LltmForward args{call.shape(),      view_of(gates), view_of(bias),
                           view_of(old_cell), new_h->data,    new_cell->data};
    const int64_t count = call.rows * call.hidden;
    if (count == 0) return;
    if (device->type == TREADLE_CPU) {
      run_cpu(*device, count,
              [&](int64_t begin, int64_t end) { cpu::lltm_cell_forward(args, begin, end); });
    } else {
      TREADLE_LAUNCH(device, launch_lltm_cell_forward(args, stream));
    }
  });
}

int treadle_lltm_cell_backward(const treadle_device* device, const treadle_array* gates,
                               const treadle_array* bias, const treadle_array* new_cell,
                               const treadle_array* grad_h, const treadle_array* grad_cell,
                               const treadle_array* grad_gates,
                               const treadle_array* grad_old_cell) {
  return guarded([&] {
    const LltmCall call(device, {"gates", gates}, {"bias", bias}, {"new_cell", new_cell});
    call.units(*device, {"grad_h", grad_h}, true, call.dtype, false);
    call.units(*device, {"grad_cell", grad_cell}, true, call.cell_dtype, false);
    call.units(*device, {"grad_gates", grad_gates}, false, call.dtype, true, 3);
    call.units(*device, {"grad_old_cell", grad_old_cell}, true, call.cell_dtype, true);
    check_memories({{"grad_gates", grad_gates}, {"grad_old_cell", grad_old_cell}},
                   {{"gates", gates},
                    {"bias", bias},
                    {"new_cell", new_cell},
                    {"grad_h", grad_h},
                    {"grad_cell", grad_cell}});
    const LltmBackward args{call.shape(),      view_of(gates),        view_of(bias),
                            view_of(new_cell), view_of(grad_h),       view_of(grad_cell),
                            grad_gates->data,  data_of(grad_old_cell)};
    const int64_t count = call.rows * call.hidden;
    if (count == 0) return;
    if (device->type == TREADLE_CPU) {
      run_cpu(*device, count,
              [&](int64_t begin, int64_t end) { cpu::lltm_cell_backward(args, begin, end); });
    } else {
      TREADLE_LAUNCH(device, launch_lltm_cell_backward(args, stream));
    }
  });
}

int treadle_sine_linear(const treadle_device* device, const treadle_array* product,
                        const treadle_array* bias, double omega, const treadle_array* output,
                        const treadle_array* phase) {
  return guarded([&] {
    const SineCall call(device, {"output", output});
    call.take(*device, {"product", product}, false, acc_of(call.dtype));
    call.take(*device, {"phase", phase}, true, phase_of(call.dtype));
    check(*device, {{"bias", bias}, true, {call.sizes[1]}, true});
    check_dtype({"bias", bias}, call.dtype);
    check_memories({{"output", output}, {"phase", phase}}, {{"product", product}, {"bias", bias}});
    SineLinearForward args{};
    args.dtype = call.dtype;
    args.rows = call.sizes[0];
    args.columns = call.sizes[1];
    args.omega = omega;
    args.product = product->data;
    args.bias = data_of(bias);
    args.output = output->data;
    args.phase = data_of(phase);
    if (call.count() == 0) return;
    if (device->type == TREADLE_CPU) {
      in_parallel(*device, call.count(), kGrain,
                  [&](int64_t begin, int64_t end) { cpu::sine_linear_forward(args, begin, end); });
    } else {
      TREADLE_LAUNCH(device, launch_sine_linear_forward(args, stream));
    }
  });
}

int treadle_sine_linear_backward(const treadle_device* device, const treadle_array* grad,
                                 const treadle_array* output, const treadle_array* phase,
                                 double omega, const treadle_array* grad_z) {
  return guarded([&] {
    const SineCall call(device, {"output", output});
    call.take(*device, {"grad", grad}, false, call.dtype);
    call.take(*device, {"phase", phase}, false, phase_of(call.dtype));
    call.take(*device, {"grad_z", grad_z}, false, call.dtype);
    check_memories({{"grad_z", grad_z}}, {{"grad", grad}, {"output", output}, {"phase", phase}});
    const SineLinearSlope args{call.dtype,      call.count(), omega,
                               /*cosine=*/true, grad->data,   /*factor=*/nullptr,
                               output->data,    phase->data,  grad_z->data};
    if (call.count() == 0) return;
    if (device->type == TREADLE_CPU) {
      in_parallel(*device, call.count(), kGrain,
                  [&](int64_t begin, int64_t end) { cpu::sine_linear_slope(args, begin, end); });
    } else {
      TREADLE_LAUNCH(device, launch_sine_linear_slope(args, stream));
    }
  });
}
