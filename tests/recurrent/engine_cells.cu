// Cells other than LLTM's in the algorithm "cluster", for test_engine_cells.py, which compiles this
// file for each: -DCELL=Lstm or Gru, -DTYPE=BFloat16 or Half. The functors are all that is new to
// the engine, kernels/recurrent/cluster*.cuh. Their twins in PyTorch: engine_cells.py.
#include <type_traits>

#include "kernels/math/activations.h"
#include "kernels/recurrent/cluster_launch.cuh"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace treadle {

namespace math {

template <class acc>
struct Lstm {
  static constexpr int kGates = 4;  // as torch.nn.LSTM orders them: i, f, g, o

  struct State {
    acc new_h, new_cell;
  };

  struct Gradients {
    acc gates[kGates], old_cell;
  };

  struct Slopes {
    SigmoidPair<acc> i, f, o;
    TanhPair<acc> g, t;
    acc old_cell;
  };

  static TREADLE_HD State forward(const acc (&g)[kGates], acc old_cell) {
    const acc kept = sigmoid(g[1]).value() * old_cell;
    const acc new_cell = kept + sigmoid(g[0]).value() * tanh(g[2]).value();
    return {tanh(new_cell).value() * sigmoid(g[3]).value(), new_cell};
  }

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell) {
    const SigmoidPair<acc> i = sigmoid_pair(g[0]), f = sigmoid_pair(g[1]);
    const TanhPair<acc> z = tanh_pair(g[2]);
    return {i,       f, sigmoid_pair(g[3]), z, tanh_pair(f.value * old_cell + i.value * z.value),
            old_cell};
  }

  static TREADLE_HD Gradients backward(const Slopes& s, acc grad_h, acc grad_cell) {
    grad_cell += grad_h * s.o.value * slope(s.t);
    return {{grad_cell * s.g.value * slope(s.i), grad_cell * s.old_cell * slope(s.f),
             grad_cell * s.i.value * slope(s.g), grad_h * s.t.value * slope(s.o)},
            grad_cell * s.f.value};
  }

  static TREADLE_HD acc slope(SigmoidPair<acc> s) { return s.value * s.complement; }
  static TREADLE_HD acc slope(TanhPair<acc> t) { return t.complement * (2 - t.complement); }
};

// torch.nn.GRU's cell: its reset gate multiplies what h gives the candidate, and not what the input
// gives. The engine adds the two before the cell sees them; but as gates of their own they stay
// apart: one has no weights of h (zeros), the other no input (zeros, and the bias of h). That
// costs a third more products with h, and as much room. The cell's state is h, not rounded.
template <class acc>
struct Gru {
  static constexpr int kGates = 4;  // r, z, the candidate's of the input, the candidate's of h

  struct State {
    acc new_h, new_cell;
  };

  struct Gradients {
    acc gates[kGates], old_cell;
  };

  struct Slopes {
    SigmoidPair<acc> r, z;
    TanhPair<acc> n;
    acc of_h, old_cell;
  };

  static TREADLE_HD State forward(const acc (&g)[kGates], acc old_cell) {
    const acc n = tanh(g[2] + sigmoid(g[0]).value() * g[3]).value();
    const acc h = n + sigmoid(g[1]).value() * (old_cell - n);
    return {h, h};
  }

  static TREADLE_HD Slopes slopes(const acc (&g)[kGates], acc old_cell) {
    const SigmoidPair<acc> r = sigmoid_pair(g[0]);
    return {r, sigmoid_pair(g[1]), tanh_pair(g[2] + r.value * g[3]), g[3], old_cell};
  }

  static TREADLE_HD Gradients backward(const Slopes& s, acc grad_h, acc grad_cell) {
    const acc grad = grad_h + grad_cell;
    const acc grad_n = grad * s.z.complement * s.n.complement * (2 - s.n.complement);
    const acc grad_z = grad * (s.old_cell - s.n.value) * s.z.value * s.z.complement;
    const acc grad_r = grad_n * s.of_h * s.r.value * s.r.complement;
    return {{grad_r, grad_z, grad_n, grad_n * s.r.value}, grad * s.z.value};
  }
};

}  // namespace math

namespace {

constexpr int64_t kGates = math::CELL<float>::kGates;

// What both passes are told, and the plan, which here nobody chooses.
struct Sizes {
  int64_t directions, steps, rows, batch, hidden;  // rows: of all steps
  int64_t padded;                                  // hidden, so that pieces are aligned
  int64_t units, blocks, tiles, rows_each;

  PersistentSizes of(const int64_t* starts) const {
    PersistentSizes s = {};
    s.dtype = std::is_same_v<TYPE, Half> ? Dtype::kHalf : Dtype::kBFloat16;
    s.directions = static_cast<int>(directions);
    s.steps = steps;
    s.batch = s.row_count = batch;
    s.hidden = hidden;
    s.starts = starts;
    return s;
  }

  ClusterPlan plan() const {
    const int u = static_cast<int>(units), b = static_cast<int>(blocks);
    return {{u, b, static_cast<int>(tiles)}, static_cast<int>(rows_each)};
  }
};

}  // namespace

EXPORTED int forward(const Sizes& s, const int64_t* starts, const void* products,
                     const void* weight_hh, const void* bias, const void* h0, const void* c0,
                     void* h, void* c, void* output, void* gates, cudaStream_t stream) {
  PersistentForward args = {};
  args.sizes = s.of(starts);
  args.products = products;
  args.product_gate = s.padded;
  args.product_row = kGates * s.padded;
  args.product_direction = s.rows * args.product_row;
  args.weight_hh = weight_hh;
  args.bias = bias;
  args.h0 = h0;
  args.c0 = c0;
  args.h = h;
  args.c = c;
  args.output = output;
  args.output_row = s.directions * s.hidden;
  args.gates = gates;
  return run_cluster_forward<math::CELL<float>, TYPE>(&args, {s.plan(), stream, nullptr});
}

EXPORTED int backward(const Sizes& s, const int64_t* starts, const void* gates, const void* cells,
                      const void* grad_output, const void* weight_hh, const void* grad_h_n,
                      const void* grad_c_n, void* grad_h0, void* grad_c0, void* grad_gates,
                      cudaStream_t stream) {
  PersistentBackward args = {};
  args.sizes = s.of(starts);
  args.gates = gates;
  args.gate_gate = s.padded;
  args.gate_row = kGates * s.padded;
  args.gate_direction = s.rows * args.gate_row;
  args.c_states = cells;
  args.grad_output = grad_output;
  args.c_row = args.grad_row = s.padded;
  args.c_direction = args.grad_direction = s.rows * s.padded;
  args.weight_hh = weight_hh;
  args.grad_h_n = grad_h_n;
  args.grad_c_n = grad_c_n;
  args.grad_h0 = grad_h0;
  args.grad_c0 = grad_c0;
  args.grad_gates = grad_gates;
  return run_cluster_backward<math::CELL<float>, TYPE>(&args, {s.plan(), stream, nullptr});
}

// One unit of one row, on the host: new_h, new_cell, and the gradients of gates and old_cell.
EXPORTED void one_unit(const double (&gates)[kGates], double old_cell, double grad_h,
                       double grad_cell, double (&results)[kGates + 3]) {
  using Cell = math::CELL<double>;
  const auto next = Cell::forward(gates, old_cell);
  const auto slopes = Cell::slopes(gates, old_cell);
  const auto grad = Cell::backward(slopes, grad_h, grad_cell);
  results[0] = next.new_h;
  results[1] = next.new_cell;
  for (int m = 0; m < kGates; ++m) results[2 + m] = grad.gates[m];
  results[kGates + 2] = grad.old_cell;
}

}  // namespace treadle
