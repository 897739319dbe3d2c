// Shared by all autograd code: functions that call ops below autograd, and OpNode, a Node whose
// saved values are declared once:
//   struct ScaleBackward : OpNode<ScaleBackward, Scalar> { kName; static backward(grads, need,
//   factor); };
// An OpNode works eagerly and under compiled autograd, with the std::shared_ptr Nodes of torch 2.11
// and the c10::intrusive_ptr Nodes of torch 2.15.
#pragma once

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include "common/check.h"
#include "common/tensors.h"

namespace treadle {

namespace ca = torch::dynamo::autograd;
using torch::autograd::collect_next_edges;
using torch::autograd::compute_requires_grad;
using torch::autograd::Edge;
using torch::autograd::isFwGradDefined;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::set_history;
using torch::autograd::variable_list;
using NodePtr = decltype(Edge::function);
using Need = std::vector<bool>;  // whether each input's gradient is needed

// A saved Tensor is an input of the op; a saved Output is one of its results.
struct Output {};

struct SavedOutput : SavedVariable {
  SavedOutput() = default;
  explicit SavedOutput(const Tensor& t) : SavedVariable(t, /*is_output=*/true) {}
};

// Storage of one saved value. Numbers and shapes are stored as they are, and are part of the key of
// a compiled graph.
template <class T>
struct Slot {
  using Kept = T;
  using Value = T;
  static Kept keep(const T& v) { return v; }
  static const T& get(const Kept& v, Node&) { return v; }
  static void collect(ca::CompiledNodeArgs& args, const Kept& v) { args.collect(v); }
};

template <>
struct Slot<Tensor> {
  using Kept = SavedVariable;
  using Value = Tensor;
  static Kept keep(const Tensor& v) { return SavedVariable(v, /*is_output=*/false); }
  static Tensor get(const Kept& v, Node&) { return v.unpack(); }
  static void collect(ca::CompiledNodeArgs& args, const Kept& v) { args.collect(v, false); }
};

template <>
struct Slot<Output> {
  using Kept = SavedOutput;
  using Value = Tensor;
  static Kept keep(const Tensor& v) { return SavedOutput(v); }
  static Tensor get(const Kept& v, Node& n) { return v.unpack(n.getptr()); }
  static void collect(ca::CompiledNodeArgs& args, const Kept& v) { args.collect(v, true); }
};

template <class T>
auto make_node() {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    // deleteNode is not qualified, so that this also compiles with newer torch, which lacks it.
    return std::shared_ptr<T>(new T(), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>();
  }
}

// Self has kName and `static variable_list backward(const variable_list& grads, const Need&,
// const Saved&...)`, where a Tensor may be undefined. A backward that takes a saved tensor by
// non-const reference may release it after its last use.
template <class Self, class... S>
struct OpNode : Node {
  // Returns null if no input requires grad, because then there is nothing to save.
  template <class... T>
  static auto record(const T&... inputs) {
    decltype(make_node<Self>()) node{};
    if (compute_requires_grad(inputs...)) {
      node = make_node<Self>();
      node->set_next_edges(collect_next_edges(inputs...));
    }
    return node;
  }

  // Call this after set_history, and after setting the tangent of an output that is saved.
  void save(const typename Slot<S>::Value&... values) {
    saved_ = decltype(saved_)(Slot<S>::keep(values)...);
  }

  std::string name() const override { return Self::kName; }

  variable_list apply(variable_list&& grads) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto values = std::apply(
        [&](auto&... kept) {
          return std::tuple<decltype(Slot<S>::get(kept, *this))...>(Slot<S>::get(kept, *this)...);
        },
        saved_);
    // The engine would release saved tensors only after this Node has run. Releasing them here
    // makes `values` their only owner, so backward can free them earlier.
    if (!torch::autograd::get_current_graph_task_keep_graph()) drop_all();
    return std::apply([&](auto&... v) { return run(grads, need(), v...); }, values);
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    drop_all();
  }

  void compiled_args(ca::CompiledNodeArgs& args) const override {
    std::apply([&](auto&... kept) { (Slot<S>::collect(args, kept), ...); }, saved_);
  }

  // Compiled autograd traces with dummy tensors, so this function must not compute anything. It
  // records one call of `functional`.
  variable_list apply_with_saved(const variable_list& grads,
                                 ca::SwapSavedVariables& swap) override {
    const auto& compiler = ca::getPyCompilerInterface();
    static const std::string function =
        compiler->bind_function(swap.get_py_compiler(), name(), &functional,
                                {ca::IValuePacker<Need>::packed_type(),
                                 ca::IValuePacker<typename Slot<S>::Value>::packed_type()...},
                                /*is_custom_function=*/true, /*is_traceable=*/true);
    std::apply([&](auto&... kept) { (swap.before(kept), ...); }, saved_);
    ca::PackedArgs args;
    args.pack(need());
    std::apply(
        [&](auto&... kept) {
          (args.pack<typename Slot<S>::Value>(Slot<S>::get(kept, *this)), ...);
        },
        saved_);
    auto result = compiler->call_function(
        swap.get_py_compiler(), "apply_functional", function, grads, args.vec(),
        ca::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            ca::get_input_metadata(next_edges())));
    std::apply([&](auto&... kept) { (swap.after(kept), ...); }, saved_);
    return result;
  }

 private:
  std::tuple<typename Slot<S>::Kept...> saved_;

  Need need() const {
    Need needed(num_outputs());
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = task_should_compute_output(i);
    return needed;
  }

  // If none of the incoming gradients is defined, all returned gradients are undefined.
  template <class... V>
  static variable_list run(variable_list& grads, const Need& needed, V&... values) {
    bool any = false;
    for (const auto& grad : grads) {
      any |= grad.defined();
      check_saved(grad);
    }
    if (!any) return variable_list(needed.size());
    (check_saved(values), ...);
    return Self::backward(grads, needed, values...);
  }

  // The storage of a saved tensor may have been resized since the forward pass. Without this check,
  // ATen ops in a backward formula would read past its end.
  template <class V>
  static void check_saved(const V& value) {
    if constexpr (std::is_same_v<V, Tensor>) {
      if (value.defined()) check_composite_storage(Self::kName, "a saved tensor", value);
    }
  }

  static variable_list functional(const variable_list& grads,
                                  const std::vector<c10::IValue>& packed) {
    ca::PackedArgs args(packed);
    auto needed = args.unpack<Need>();
    variable_list own = grads;
    std::tuple<typename Slot<S>::Value...> values{args.unpack<typename Slot<S>::Value>()...};
    return std::apply([&](auto&... v) { return run(own, needed, v...); }, values);
  }

  void drop_all() {
    std::apply([](auto&... kept) { (drop(kept), ...); }, saved_);
  }

  template <class K>
  static void drop(K& kept) {
    if constexpr (std::is_base_of_v<SavedVariable, K>) kept.reset_data();
  }
};

// Both functions call the kernel below autograd. The first is for ops that return a new result, the
// second for ops that write in place.
template <class Signature, class... Args>
auto below_autograd(const c10::TypedOperatorHandle<Signature>& op, c10::DispatchKeySet keys,
                    const Args&... args) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.redispatch(keys & c10::after_autograd_keyset, args...);
}

template <class Signature, class... Args>
auto below_autograd_inplace(const c10::TypedOperatorHandle<Signature>& op, c10::DispatchKeySet keys,
                            Args&&... args) {
  at::AutoDispatchBelowAutograd guard;
  return op.redispatch(keys & c10::after_autograd_keyset, args...);
}

// Whether any of the tensors has a tangent.
template <class... T>
bool has_tangent(const T&... tensors) {
  return (... || isFwGradDefined(tensors));
}

// The tangent of t; undefined if t has none or is itself undefined.
inline Tensor tangent(const Tensor& t) { return isFwGradDefined(t) ? t._fw_grad(0) : Tensor(); }

// The value of t without this level's tangent; the tangents of outer levels remain. Undefined if t
// is undefined.
inline Tensor primal(const Tensor& t) { return isFwGradDefined(t) ? t._fw_primal(0) : t; }

// With `inplace`, an existing tangent is overwritten rather than replaced, because views share it.
inline void set_tangent(const Tensor& out, const Tensor& value, bool inplace = false) {
  if (!value.defined()) return;
  const Tensor present = inplace ? tangent(out) : Tensor();
  out._set_fw_grad(present.defined() ? present.copy_(value) : value, /*level=*/0, inplace);
}

// Raises if a tensor requires grad or has a tangent, because there is no derivative formula for
// writing into `argument`.
template <class... T>
void refuse_autograd(const char* op, const char* argument, const T&... tensors) {
  TORCH_CHECK(!compute_requires_grad(tensors...) && !has_tangent(tensors...), op, ": ", argument,
              " must be used without autograd, got an argument that requires grad");
}

}  // namespace treadle
