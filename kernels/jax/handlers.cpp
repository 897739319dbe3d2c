// libtreadle_jax.so, for treadle.jax: the functions of kernels.h as handlers of XLA's foreign
// function interface. A handler passes descriptions of XLA's buffers to a function. It copies
// nothing, and on CUDA it launches on XLA's stream.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "treadle/kernels.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Out = ffi::Result<ffi::AnyBuffer>;

uint32_t dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return TREADLE_BOOL;
    case ffi::DataType::U8:
      return TREADLE_UINT8;
    case ffi::DataType::S8:
      return TREADLE_INT8;
    case ffi::DataType::S16:
      return TREADLE_INT16;
    case ffi::DataType::S32:
      return TREADLE_INT32;
    case ffi::DataType::S64:
      return TREADLE_INT64;
    case ffi::DataType::F16:
      return TREADLE_FLOAT16;
    case ffi::DataType::BF16:
      return TREADLE_BFLOAT16;
    case ffi::DataType::F32:
      return TREADLE_FLOAT32;
    case ffi::DataType::F64:
      return TREADLE_FLOAT64;
    default:
      return 0;  // not a dtype of kernels.h, so the library returns an error
  }
}

// XLA's buffers are contiguous, because treadle.jax requests no other layout.
treadle_array array_of(const ffi::AnyBuffer& buffer) {
  const ffi::AnyBuffer::Dimensions sizes = buffer.dimensions();
  return {sizeof(treadle_array),
          buffer.untyped_data(),
          sizes.begin(),
          /*strides=*/nullptr,
          static_cast<int32_t>(sizes.size()),
          dtype_of(buffer.element_type())};
}

ffi::Error error_of(int status) {
  switch (status) {
    case TREADLE_OK:
      return ffi::Error::Success();
    case TREADLE_INVALID:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, treadle_error_text());
    case TREADLE_UNSUPPORTED:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, treadle_error_text());
    case TREADLE_NO_MEMORY:
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, treadle_error_text());
    default:
      return ffi::Error(ffi::ErrorCode::kInternal, treadle_error_text());
  }
}

// ---- elementwise

template <int (*kFunction)(const treadle_device*, const treadle_array*, const treadle_array*)>
ffi::Error unary(const treadle_device& device, ffi::AnyBuffer x, Out out) {
  const treadle_array from = array_of(x), to = array_of(*out);
  return error_of(kFunction(&device, &from, &to));
}

template <int (*kFunction)(const treadle_device*, const treadle_array*, const treadle_array*,
                           const treadle_array*)>
ffi::Error unary_backward(const treadle_device& device, ffi::AnyBuffer grad, ffi::AnyBuffer x,
                          Out out) {
  const treadle_array of_result = array_of(grad), from = array_of(x), to = array_of(*out);
  return error_of(kFunction(&device, &of_result, &from, &to));
}

ffi::Error scale(const treadle_device& device, ffi::AnyBuffer x, Out out, double real,
                 int64_t integer, bool is_integer) {
  const treadle_array from = array_of(x), to = array_of(*out);
  return error_of(treadle_scale(&device, &from, {real, integer, is_integer}, &to));
}

ffi::Error vector_add(const treadle_device& device, ffi::AnyBuffer a, ffi::AnyBuffer b, Out out,
                      double real, int64_t integer, bool is_integer) {
  const treadle_array first = array_of(a), second = array_of(b), to = array_of(*out);
  return error_of(treadle_vector_add(&device, &first, &second, {real, integer, is_integer}, &to));
}

// ---- recurrent layers

// An empty buffer means that the argument is omitted.
void* data_of(const ffi::AnyBuffer& buffer) {
  return buffer.element_count() == 0 ? nullptr : buffer.untyped_data();
}

// `wide` is the layer's gates or products, of sizes [D, T, B, ...]. c0 has the dtype of c.
treadle_recurrent layer_of(int32_t cell, const ffi::AnyBuffer& wide, const ffi::AnyBuffer& c0) {
  const ffi::AnyBuffer::Dimensions sizes = wide.dimensions();
  return {sizeof(treadle_recurrent),
          cell,
          static_cast<int32_t>(sizes[0]),
          dtype_of(wide.element_type()),
          dtype_of(c0.element_type()),
          sizes[1],
          sizes[2],
          c0.dimensions().back()};
}

// The part of a buffer that begins at its first multiple of 256 bytes, because XLA aligns buffers
// to fewer bytes on the CPU.
struct Workspace {
  void* data;
  size_t bytes;

  explicit Workspace(const ffi::AnyBuffer& buffer) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(buffer.untyped_data());
    const uintptr_t aligned = (begin + 255) / 256 * 256;
    data = reinterpret_cast<void*>(aligned);
    const size_t lost = aligned - begin, all = buffer.size_bytes();
    bytes = all < lost ? 0 : all - lost;
  }
};

ffi::Error recurrent_forward(const treadle_device& device, ffi::AnyBuffer products,
                             ffi::AnyBuffer weight_hh, ffi::AnyBuffer bias_ih,
                             ffi::AnyBuffer bias_hh, ffi::AnyBuffer h0, ffi::AnyBuffer c0,
                             Out output, Out h_n, Out c_n, Out gates, Out room, int32_t cell) {
  const treadle_recurrent layer = layer_of(cell, products, c0);
  const treadle_recurrent_inputs in = {sizeof(in),       data_of(products), data_of(weight_hh),
                                       data_of(bias_ih), data_of(bias_hh),  data_of(h0),
                                       data_of(c0)};
  const treadle_recurrent_outputs out = {sizeof(out), data_of(*output), data_of(*h_n),
                                         data_of(*c_n), data_of(*gates)};
  const Workspace workspace(*room);
  return error_of(
      treadle_recurrent_forward(&device, &layer, &in, &out, workspace.data, workspace.bytes));
}

ffi::Error recurrent_backward(const treadle_device& device, ffi::AnyBuffer gates,
                              ffi::AnyBuffer weight_hh, ffi::AnyBuffer c0,
                              ffi::AnyBuffer grad_output, ffi::AnyBuffer grad_h_n,
                              ffi::AnyBuffer grad_c_n, Out grad_gates, Out grad_h0, Out grad_c0,
                              Out room, int32_t cell) {
  const treadle_recurrent layer = layer_of(cell, gates, c0);
  const treadle_recurrent_saved in = {sizeof(in),       data_of(gates),       data_of(weight_hh),
                                      data_of(c0),      data_of(grad_output), data_of(grad_h_n),
                                      data_of(grad_c_n)};
  const treadle_recurrent_grads out = {sizeof(out), data_of(*grad_gates), data_of(*grad_h0),
                                       data_of(*grad_c0)};
  const Workspace workspace(*room);
  return error_of(
      treadle_recurrent_backward(&device, &layer, &in, &out, workspace.data, workspace.bytes));
}

// ---- a handler for each device

template <auto kFunction>
struct On;

template <class... Args, ffi::Error (*kFunction)(const treadle_device&, Args...)>
struct On<kFunction> {
  static ffi::Error cpu(Args... args) {
    return kFunction({sizeof(treadle_device), TREADLE_CPU, 0, nullptr, 0}, args...);
  }
  static ffi::Error cuda(void* stream, int32_t index, Args... args) {
    return kFunction({sizeof(treadle_device), TREADLE_CUDA, index, stream, 0}, args...);
  }
};

auto on_cpu() { return ffi::Ffi::Bind(); }
auto on_cuda() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>();
}

// Binds the given numbers of arguments and results, after the arguments that describe the device.
template <int kArguments, int kResults, class Binding>
auto buffers(Binding&& binding) {
  if constexpr (kArguments > 0) {
    return buffers<kArguments - 1, kResults>(std::move(binding).template Arg<ffi::AnyBuffer>());
  } else if constexpr (kResults > 1) {
    return buffers<0, kResults - 1>(std::move(binding).template Ret<ffi::AnyBuffer>());
  } else {
    return std::move(binding).template Ret<ffi::AnyBuffer>();  // the last binding must not be moved
  }
}

}  // namespace

// Defines treadle_jax_<name>_cpu and treadle_jax_<name>_cuda. The last argument binds attributes.
#define TREADLE_HANDLERS(name, function, arguments, results, ...)                      \
  extern "C" TREADLE_API XLA_FFI_Error* treadle_jax_##name##_cpu(XLA_FFI_CallFrame*);  \
  extern "C" TREADLE_API XLA_FFI_Error* treadle_jax_##name##_cuda(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(treadle_jax_##name##_cpu, (On<function>::cpu),         \
                                (buffers<arguments, results>(on_cpu()) __VA_ARGS__));  \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(treadle_jax_##name##_cuda, (On<function>::cuda),       \
                                (buffers<arguments, results>(on_cuda()) __VA_ARGS__))
#define TREADLE_NUMBER .Attr<double>("real").Attr<int64_t>("integer").Attr<bool>("is_integer")
#define TREADLE_CELL .Attr<int32_t>("cell")

TREADLE_HANDLERS(sine, unary<treadle_sine>, 1, 1, );
TREADLE_HANDLERS(cosine, unary<treadle_cosine>, 1, 1, );
TREADLE_HANDLERS(sine_backward, unary_backward<treadle_sine_backward>, 2, 1, );
TREADLE_HANDLERS(cosine_backward, unary_backward<treadle_cosine_backward>, 2, 1, );
TREADLE_HANDLERS(scale, scale, 1, 1, TREADLE_NUMBER);
TREADLE_HANDLERS(vector_add, vector_add, 2, 1, TREADLE_NUMBER);
TREADLE_HANDLERS(recurrent_forward, recurrent_forward, 6, 5, TREADLE_CELL);
TREADLE_HANDLERS(recurrent_backward, recurrent_backward, 6, 4, TREADLE_CELL);
