// The C++ functions lltm, lstm, gru, rnn_tanh and rnn_relu of treadle/ops.h, and their variants.
// They call the ops of layers.cpp.
#include "common/tensors.h"
#include "treadle/ops.h"

namespace treadle {
namespace {

using OptionalList = std::optional<at::TensorList>;

// Results is Tensors3, or Tensors4 if the function also returns the cell states.
template <class Results>
using PairInput = Results(const Tensor&, at::TensorList, at::TensorList, bool, int64_t, double,
                          bool, bool, bool, bool, const OptionalTensor&, OptionalList,
                          const OptionalTensor&);
template <class Results>
using PairData = Results(const Tensor&, const Tensor&, at::TensorList, at::TensorList, bool,
                         int64_t, double, bool, bool, bool, const OptionalTensor&, OptionalList);
using OneInput = Tensors2(const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double, bool,
                          bool, bool, bool, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&);
using OneData = Tensors2(const Tensor&, const Tensor&, const Tensor&, at::TensorList, bool, int64_t,
                         double, bool, bool, bool, const OptionalTensor&, const OptionalTensor&);

OptionalList list_of(at::TensorList t) { return t.empty() ? OptionalList() : OptionalList(t); }

}  // namespace

Tensors3 lltm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
              int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
              bool recompute, const OptionalTensor& reset, at::TensorList reset_hx,
              const OptionalTensor& lengths) {
  static const auto op = find_op<PairInput<Tensors3>>("treadle::lltm", "input");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, list_of(reset_hx), lengths);
}

Tensors3 lltm(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
              at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
              bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
              at::TensorList reset_hx) {
  static const auto op = find_op<PairData<Tensors3>>("treadle::lltm", "data");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, list_of(reset_hx));
}

Tensors3 lstm(const Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
              int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
              bool recompute, const OptionalTensor& reset, at::TensorList reset_hx,
              const OptionalTensor& lengths) {
  static const auto op = find_op<PairInput<Tensors3>>("treadle::lstm", "input");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, list_of(reset_hx), lengths);
}

Tensors3 lstm(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
              at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
              bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
              at::TensorList reset_hx) {
  static const auto op = find_op<PairData<Tensors3>>("treadle::lstm", "data");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, list_of(reset_hx));
}

Tensors4 lltm_with_cells(const Tensor& input, at::TensorList hx, at::TensorList params,
                         bool has_biases, int64_t num_layers, double dropout, bool train,
                         bool bidirectional, bool batch_first, bool recompute,
                         const OptionalTensor& reset, at::TensorList reset_hx,
                         const OptionalTensor& lengths) {
  static const auto op = find_op<PairInput<Tensors4>>("treadle::lltm", "input_cells");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, list_of(reset_hx), lengths);
}

Tensors4 lltm_with_cells(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                         at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                         bool train, bool bidirectional, bool recompute,
                         const OptionalTensor& reset, at::TensorList reset_hx) {
  static const auto op = find_op<PairData<Tensors4>>("treadle::lltm", "data_cells");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, list_of(reset_hx));
}

Tensors4 lstm_with_cells(const Tensor& input, at::TensorList hx, at::TensorList params,
                         bool has_biases, int64_t num_layers, double dropout, bool train,
                         bool bidirectional, bool batch_first, bool recompute,
                         const OptionalTensor& reset, at::TensorList reset_hx,
                         const OptionalTensor& lengths) {
  static const auto op = find_op<PairInput<Tensors4>>("treadle::lstm", "input_cells");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, list_of(reset_hx), lengths);
}

Tensors4 lstm_with_cells(const Tensor& data, const Tensor& batch_sizes, at::TensorList hx,
                         at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                         bool train, bool bidirectional, bool recompute,
                         const OptionalTensor& reset, at::TensorList reset_hx) {
  static const auto op = find_op<PairData<Tensors4>>("treadle::lstm", "data_cells");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, list_of(reset_hx));
}

Tensors2 gru(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
             int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first,
             bool recompute, const OptionalTensor& reset, const OptionalTensor& reset_hx,
             const OptionalTensor& lengths) {
  static const auto op = find_op<OneInput>("treadle::gru", "input");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, reset_hx, lengths);
}

Tensors2 gru(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx, at::TensorList params,
             bool has_biases, int64_t num_layers, double dropout, bool train, bool bidirectional,
             bool recompute, const OptionalTensor& reset, const OptionalTensor& reset_hx) {
  static const auto op = find_op<OneData>("treadle::gru", "data");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, reset_hx);
}

Tensors2 rnn_tanh(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
                  int64_t num_layers, double dropout, bool train, bool bidirectional,
                  bool batch_first, bool recompute, const OptionalTensor& reset,
                  const OptionalTensor& reset_hx, const OptionalTensor& lengths) {
  static const auto op = find_op<OneInput>("treadle::rnn_tanh", "input");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, reset_hx, lengths);
}

Tensors2 rnn_tanh(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
                  const OptionalTensor& reset_hx) {
  static const auto op = find_op<OneData>("treadle::rnn_tanh", "data");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, reset_hx);
}

Tensors2 rnn_relu(const Tensor& input, const Tensor& hx, at::TensorList params, bool has_biases,
                  int64_t num_layers, double dropout, bool train, bool bidirectional,
                  bool batch_first, bool recompute, const OptionalTensor& reset,
                  const OptionalTensor& reset_hx, const OptionalTensor& lengths) {
  static const auto op = find_op<OneInput>("treadle::rnn_relu", "input");
  return op.call(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                 batch_first, recompute, reset, reset_hx, lengths);
}

Tensors2 rnn_relu(const Tensor& data, const Tensor& batch_sizes, const Tensor& hx,
                  at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
                  bool train, bool bidirectional, bool recompute, const OptionalTensor& reset,
                  const OptionalTensor& reset_hx) {
  static const auto op = find_op<OneData>("treadle::rnn_relu", "data");
  return op.call(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
                 bidirectional, recompute, reset, reset_hx);
}

}  // namespace treadle
