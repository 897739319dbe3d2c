// The pointwise kernels of the baseline in tutorial.py. There is one thread for each row and unit;
// blockIdx.y is the row.
#include <torch/types.h>

using torch::Tensor;

namespace {

constexpr int kThreads = 1024;

template <class T>
__device__ T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

template <class T>
__global__ void forward_kernel(const T* gates, const T* old_cell, T* new_h, T* new_cell, T* i, T* o,
                               T* z, int width) {
  const int h = blockIdx.x * blockDim.x + threadIdx.x;
  if (h >= width) return;
  const int at = blockIdx.y * width + h, first = blockIdx.y * 3 * width + h;
  const T candidate = gates[first + 2 * width];
  i[at] = sigmoid(gates[first]);
  o[at] = sigmoid(gates[first + width]);
  z[at] = candidate > T(0) ? candidate : exp(candidate) - T(1);
  new_cell[at] = old_cell[at] + z[at] * i[at];
  new_h[at] = tanh(new_cell[at]) * o[at];
}

template <class T>
__global__ void backward_kernel(const T* grad_h, const T* grad_cell, const T* new_cell, const T* i,
                                const T* o, const T* z, const T* gates, T* d_gates, T* d_old_cell,
                                int width) {
  const int h = blockIdx.x * blockDim.x + threadIdx.x;
  if (h >= width) return;
  const int at = blockIdx.y * width + h, first = blockIdx.y * 3 * width + h;
  const T t = tanh(new_cell[at]);
  const T d_cell = grad_h[at] * o[at] * (T(1) - t * t) + grad_cell[at];
  const T candidate = gates[first + 2 * width];
  const T slope = candidate > T(0) ? T(1) : exp(candidate);
  d_old_cell[at] = d_cell;
  d_gates[first] = d_cell * z[at] * i[at] * (T(1) - i[at]);
  d_gates[first + width] = grad_h[at] * t * o[at] * (T(1) - o[at]);
  d_gates[first + 2 * width] = d_cell * i[at] * slope;
}

dim3 grid_of(const Tensor& state) {
  return dim3((state.size(1) + kThreads - 1) / kThreads, state.size(0));
}

}  // namespace

void pointwise_forward(const Tensor& gates, const Tensor& old_cell, Tensor& new_h, Tensor& new_cell,
                       Tensor& i, Tensor& o, Tensor& z) {
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "tutorial forward", [&] {
    forward_kernel<scalar_t><<<grid_of(old_cell), kThreads>>>(
        gates.data_ptr<scalar_t>(), old_cell.data_ptr<scalar_t>(), new_h.data_ptr<scalar_t>(),
        new_cell.data_ptr<scalar_t>(), i.data_ptr<scalar_t>(), o.data_ptr<scalar_t>(),
        z.data_ptr<scalar_t>(), old_cell.size(1));
  });
}

void pointwise_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& new_cell,
                        const Tensor& i, const Tensor& o, const Tensor& z, const Tensor& gates,
                        Tensor& d_gates, Tensor& d_old_cell) {
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "tutorial backward", [&] {
    backward_kernel<scalar_t><<<grid_of(new_cell), kThreads>>>(
        grad_h.data_ptr<scalar_t>(), grad_cell.data_ptr<scalar_t>(), new_cell.data_ptr<scalar_t>(),
        i.data_ptr<scalar_t>(), o.data_ptr<scalar_t>(), z.data_ptr<scalar_t>(),
        gates.data_ptr<scalar_t>(), d_gates.data_ptr<scalar_t>(), d_old_cell.data_ptr<scalar_t>(),
        new_cell.size(1));
  });
}
