#include "recurrent/lists/stack.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "common/check.h"

namespace treadle {

LayerInference& layer_inference(c10::DeviceType device) {
  static LayerInference found[c10::COMPILE_TIME_MAX_DEVICE_TYPES] = {};
  return found[static_cast<size_t>(device)];
}

// ---- which calls run as a stack

bool is_plain(const Tensor& input, const OptionalTensor& batch_sizes, const Layers& a) {
  if (a.cells || a.lengths || (a.dropout != 0 && a.train && a.num_layers > 1)) return false;
  const bool grad_mode = at::GradMode::is_enabled();
  const auto local = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet keys = local.included_;
  bool derivatives = false;
  const auto see = [&](const Tensor& t) {
    keys = keys | t.key_set();
    derivatives = derivatives || (grad_mode && t.requires_grad()) || t._fw_grad(0).defined();
  };
  see(input);
  if (batch_sizes) see(*batch_sizes);
  if (a.reset) see(*a.reset);
  for (const at::TensorList list : {a.hx, a.params, a.reset_hx}) {
    for (const Tensor& t : list) see(t);
  }
  return !derivatives && are_dense_keys(keys - local.excluded_);
}

// ---- views of parts of tensors. as_strided is one call of the dispatcher; narrow() makes three.

static Tensor placed(const Tensor& t, int64_t first, at::IntArrayRef sizes) {
  return at::as_strided(t, sizes, c10::contiguous_strides(sizes), t.storage_offset() + first);
}

// One layer's part [D, ...] of a tensor [L*D, ...]; undefined if `all` is.
static Tensor layer_of(const Layers& a, const Tensor& all, int64_t layer) {
  if (!all.defined() || a.num_layers == 1) return all;
  auto sizes = all.sizes().vec();
  sizes[0] = a.directions();
  return at::as_strided(all, sizes, all.strides(),
                        all.storage_offset() + layer * a.directions() * all.stride(0));
}

// ---- parameters

using Parameters = std::array<Tensor, 4>;  // weight_ih, weight_hh, bias_ih, bias_hh

// Stacks the parameters of two directions with a single copy. Returns false if a parameter would
// not be aligned in that memory, or if dtypes or devices differ.
static bool stack_at_once(at::TensorList own, int64_t each, Parameters& found) {
  std::vector<Tensor> flat;
  for (int64_t k = 0; k < each; ++k) {
    const Tensor &first = own[k], &second = own[each + k];
    const bool alike =
        first.scalar_type() == own[0].scalar_type() && first.device() == own[0].device();
    if (!alike || first.nbytes() % 8 != 0) return false;
    flat.push_back(first.reshape(-1));
    flat.push_back(second.reshape(-1));
  }
  const Tensor all = at::cat(flat);
  int64_t begin = 0;
  for (int64_t k = 0; k < each; ++k) {
    std::vector<int64_t> sizes{2};
    sizes.insert(sizes.end(), own[k].sizes().begin(), own[k].sizes().end());
    found[k] = placed(all, begin, sizes);
    begin += 2 * own[k].numel();
  }
  return true;
}

static Parameters parameters_of(const Layers& a, int64_t layer) {
  const auto own = a.params_of(layer);
  Parameters found;
  if (a.bidirectional && stack_at_once(own, a.each(), found)) return found;
  for (int64_t k = 0; k < 4; ++k) found[k] = of_directions(own, a.each(), k);
  return found;
}

// ---- the layers

LayersResults run_stack(LayerInference run_layer, const Tensor& input,
                        const OptionalTensor& batch_sizes, const Layers& a) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const GivenStates given(a, batch_sizes.has_value());
  auto sizes = C10_AS_INTARRAYREF_SLOW(states_shape(input, batch_sizes, a)).vec();
  const auto of_h = a.hx.empty() ? input.options() : given.h0.options();
  const auto of_c = !a.hx.empty() ? given.c0.options()
                    : a.has_c()   ? of_h
                                  : of_h.dtype(at::toOpMathType(input.scalar_type()));
  LayersResults all;
  all.h_n = at::empty(sizes, of_h);
  auto sizes_of_c = sizes;
  sizes_of_c[2] *= cell_info(a.cell).c_parts;
  if (a.has_c()) all.c_n = at::empty(sizes_of_c, of_c);
  std::optional<ZeroStates> zeros;
  sizes[0] = sizes_of_c[0] = a.directions();
  if (a.hx.empty()) zeros.emplace(sizes, of_h, sizes_of_c, of_c);
  all.output = input;
  for (int64_t layer = 0; layer < a.num_layers; ++layer) {
    const auto [weight_ih, weight_hh, bias_ih, bias_hh] = parameters_of(a, layer);
    const LayerArguments arguments{all.output,
                                   zeros ? zeros->h : layer_of(a, given.h0, layer),
                                   zeros ? zeros->c : layer_of(a, given.c0, layer),
                                   weight_ih,
                                   weight_hh,
                                   bias_ih,
                                   bias_hh,
                                   layer_of(a, given.reset_h, layer),
                                   layer_of(a, given.reset_c, layer),
                                   value_or_undefined(batch_sizes),
                                   given.reset,
                                   a.cell};
    all.output = run_layer(arguments, {layer_of(a, all.h_n, layer), layer_of(a, all.c_n, layer),
                                       zeros ? &*zeros : nullptr});
  }
  return all;
}

}  // namespace treadle
