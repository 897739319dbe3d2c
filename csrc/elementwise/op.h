// An elementwise op is a struct with the parts that are specific to it. This header generates the
// rest: the kernels of each form, Meta kernels, autograd, vmap, dispatcher calls and registration.
// The simplest example is scale.h. x is the first tensor, which the in-place form overwrites; A...
// are the types of the other arguments, in the schema's order. A struct defines:
//   kName                             the schema's name; kOverload and kForms have defaults
//   check(op, x, a..., out)           returns the result's dtype; `out` is the output or undefined
//   twin(x, a...)                     torch ops that give the shape and dtype on meta tensors
//   Backward, saved(x, a...)          the Node, and a tuple of the values that it saves
//   jvp(tangents, x, a..., result)    the result's tangent; x, a... and result are primals, missing
//                                     tangents are undefined, and at least one is defined
#pragma once

#include <array>
#include <string>
#include <tuple>

#include "common/autograd.h"
#include "common/rules.h"
#include "common/vmap.h"
#include "elementwise/loop.h"

namespace treadle {

// kBatched: the functional and in-place forms get elementwise_batch_rule for vmap.
enum Forms : unsigned { kFunctional = 1, kOut = 2, kInPlace = 4, kBatched = 8, kAllForms = 15 };

namespace detail {

template <class T>
constexpr bool is_tensor =
    std::is_same_v<T, const Tensor&> || std::is_same_v<T, const OptionalTensor&>;

// A tuple with the argument if it is a tensor, otherwise an empty tuple. A missing tensor becomes
// an undefined one.
inline auto if_tensor(const Tensor& t) { return std::tie(t); }
inline auto if_tensor(const OptionalTensor& t) { return std::tuple(value_or_undefined(t)); }
template <class T>
std::tuple<> if_tensor(const T&) {
  return {};
}

// if_number does the same for an argument that is a number, in the form that kernels accept.
inline auto if_number(const Scalar& s) { return std::tuple(to_scalar_arg(s)); }
template <class T>
std::tuple<> if_number(const T&) {
  return {};
}

inline Tensor primal_of(const Tensor& t) { return primal(t); }
inline OptionalTensor primal_of(const OptionalTensor& t) {
  return has(t) ? OptionalTensor(primal(*t)) : t;
}
template <class T>
const T& primal_of(const T& value) {
  return value;
}

// Calls f with the arguments that are tensors; a missing one is undefined.
template <class F, class... T>
auto of_tensors(const F& f, const T&... arguments) {
  return std::apply(f, std::tuple_cat(if_tensor(arguments)...));
}

// Returns "scale.out" for "scale" and "out".
inline std::string full_name(const std::string& name, const char* overload) {
  return *overload == 0 ? name : name + "." + overload;
}

}  // namespace detail

// Runs a kernel, which receives a part of the loop and the parameters. Its twin is OnCuda in
// cuda/loop.h.
struct OnCpu {
  template <auto kernel, class Parameters>
  static void run(ElementwiseLoop& loop, const Parameters& parameters) {
    run_cpu(loop, [&](const cpu::Tile2d& tile) {
      std::apply([&](const auto&... p) { kernel(tile, p...); }, parameters);
    });
  }
};

template <class Op, class... A>
struct ElementwiseOp {
  static constexpr const char* kOverload = "";
  static constexpr unsigned kForms = kAllForms;
  // Whether derivatives depend on x, which the in-place form therefore saves before overwriting it.
  static constexpr bool kAtX = false;
  // Whether x and the result have the same tangent, so that the in-place form need not set it.
  static constexpr bool kKeepsTangent = false;
  // The tangents of all tensor arguments, in order.
  using Tangents = std::array<Tensor, 1 + (0 + ... + detail::is_tensor<A>)>;

  // ---- defaults, which a struct may override

  // A tuple of the kernels' parameters besides the tensors.
  static auto parameters(A... a) { return std::tuple_cat(detail::if_number(a)...); }

  static ElementwiseLoop loop(const char* op, const Tensor& out, const Tensor& x, A... a) {
    const ScalarType compute = Op::check(op, x, a..., out);
    return detail::of_tensors(
        [&](const auto&... t) { return ElementwiseLoop(op, out, t..., compute); }, x, a...);
  }

  // ---- dispatcher calls

  static const char* inplace_name() {
    static const std::string name = std::string(Op::kName) + "_";
    return name.c_str();
  }

  template <class Signature>
  static auto find(const char* name, const char* overload) {
    return find_op<Signature>((std::string("treadle::") + name).c_str(), overload);
  }

  static const auto& op() {
    static const auto op = find<Tensor(const Tensor&, A...)>(Op::kName, Op::kOverload);
    return op;
  }

  static const auto& out_op() {
    static const auto op = find<void(const Tensor&, A..., Tensor&)>(Op::kName, "out");
    return op;
  }

  static const auto& inplace_op() {
    static const auto op = find<void(Tensor&, A...)>(inplace_name(), Op::kOverload);
    return op;
  }

  static Tensor call(const Tensor& x, A... a) { return op().call(x, a...); }

  static Tensor& call_out(Tensor& out, const Tensor& x, A... a) {
    out_op().call(x, a..., out);
    return out;
  }

  static Tensor& call_inplace(Tensor& x, A... a) {
    inplace_op().call(x, a...);
    return x;
  }

  // ---- the forms, by dispatch key

  template <class Device, auto kernel>
  struct Kernels {
    static Tensor functional(const Tensor& x, A... a) {
      ElementwiseLoop loop = Op::loop(Op::kName, Tensor(), x, a...);
      Device::template run<kernel>(loop, Op::parameters(a...));
      return loop.output;
    }
    static void out(const Tensor& x, A... a, Tensor& out) {
      ElementwiseLoop loop = Op::loop(Op::kName, out, x, a...);
      Device::template run<kernel>(loop, Op::parameters(a...));
    }
    static void inplace(Tensor& x, A... a) {
      ElementwiseLoop loop = Op::loop(inplace_name(), x, x, a...);
      Device::template run<kernel>(loop, Op::parameters(a...));
    }
  };

  // TensorIterator does not support symbolic sizes, so the twin gives the shape and dtype.
  struct Meta {
    static Tensor functional(const Tensor& x, A... a) {
      Op::check(Op::kName, x, a..., Tensor());
      return Op::twin(x, a...);
    }
    static void out(const Tensor& x, A... a, Tensor& out) {
      Op::check(Op::kName, x, a..., out);
      at::neg_outf(Op::twin(x, a...), out);  // resizes and casts
    }
    static void inplace(Tensor& x, A... a) { Op::check(inplace_name(), x, a..., x); }
  };

  struct Autograd {
    static Tensor functional(c10::DispatchKeySet keys, const Tensor& x, A... a) {
      auto node = detail::of_tensors(record, x, a...);
      Tensor out = below_autograd(op(), keys, x, a...);
      if (node) {
        set_history(out, node);
        save(*node, x, a...);
      }
      if (detail::of_tensors(moved, x, a...)) {
        const Tangents given = detail::of_tensors(tangents, x, a...);
        set_tangent(out, Op::jvp(given, primal(x), detail::primal_of(a)..., out));
      }
      return out;
    }

    static void inplace(c10::DispatchKeySet keys, Tensor& x, A... a) {
      torch::autograd::check_inplace(x, detail::of_tensors(required, x, a...));
      auto node = detail::of_tensors(record, x, a...);
      const bool any_moved = detail::of_tensors(moved, x, a...);
      const Tangents given = detail::of_tensors(tangents, x, a...);
      const Tensor old = Op::kAtX && (node || any_moved) ? x.clone() : x;
      if (node) save(*node, old, a...);
      below_autograd_inplace(inplace_op(), keys, x, a...);
      if (node) torch::autograd::rebase_history(x, node);
      if (!any_moved || Op::kKeepsTangent) return;
      set_tangent(x, Op::jvp(given, primal(old), detail::primal_of(a)..., primal(x)),
                  /*inplace=*/true);
    }

    static void out(c10::DispatchKeySet keys, const Tensor& x, A... a, Tensor& out) {
      detail::of_tensors(refuse, x, a..., out);
      below_autograd_inplace(out_op(), keys, x, a..., out);
    }

   private:
    static constexpr auto record = [](const auto&... t) { return Op::Backward::record(t...); };
    static constexpr auto moved = [](const auto&... t) { return has_tangent(t...); };
    static constexpr auto tangents = [](const auto&... t) { return Tangents{tangent(t)...}; };
    static constexpr auto required = [](const auto&... t) { return compute_requires_grad(t...); };
    static constexpr auto refuse = [](const auto&... t) {
      refuse_autograd(Op::kName, "out", t...);
    };

    template <class Node>
    static void save(Node& node, const Tensor& x, A... a) {
      std::apply([&](const auto&... values) { node.save(values...); }, Op::saved(x, a...));
    }
  };

  // ---- registration

  template <class F>
  static void register_forms(torch::Library& m) {
    using detail::full_name;
    if constexpr ((Op::kForms & kFunctional) != 0) {
      m.impl(full_name(Op::kName, Op::kOverload).c_str(), F::functional);
    }
    if constexpr ((Op::kForms & kOut) != 0) m.impl(full_name(Op::kName, "out").c_str(), F::out);
    if constexpr ((Op::kForms & kInPlace) != 0) {
      m.impl(full_name(inplace_name(), Op::kOverload).c_str(), F::inplace);
    }
  }

  static void register_vmap(torch::Library& m) {
    using detail::full_name;
    if constexpr ((Op::kForms & kBatched) == 0) return;
    m.impl(full_name(Op::kName, Op::kOverload).c_str(), TREADLE_RULE(elementwise_batch_rule));
    if constexpr ((Op::kForms & kInPlace) != 0) {
      m.impl(full_name(inplace_name(), Op::kOverload).c_str(),
             TREADLE_RULE(elementwise_batch_rule));
    }
  }
};

// Registers Op's CPU and Meta kernels, autograd, and vmap rules. cuda/ops.cpp registers its CUDA
// kernels.
#define TREADLE_REGISTER_ELEMENTWISE(Op, kernel)                                             \
  TORCH_LIBRARY_IMPL(treadle, CPU, m) { Op::register_forms<Op::Kernels<OnCpu, kernel>>(m); } \
  TORCH_LIBRARY_IMPL(treadle, Meta, m) { Op::register_forms<Op::Meta>(m); }                  \
  TORCH_LIBRARY_IMPL(treadle, Autograd, m) { Op::register_forms<Op::Autograd>(m); }          \
  TORCH_LIBRARY_IMPL(treadle, FuncTorchBatched, m) { Op::register_vmap(m); }

}  // namespace treadle
