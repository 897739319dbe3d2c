// Dispatches to the launchers of the cell that the arguments specify.
#include "kernels/common/launch.cuh"
#include "kernels/common/tma.cuh"
#include "kernels/recurrent/cell_launchers.h"
#include "kernels/recurrent/formula/function.h"
#include "kernels/recurrent/launchers.h"
#include "kernels/recurrent/step/step_group.h"

namespace treadle {
namespace {

// Like visit_cell(), but also for cells that are defined by formulas.
template <class F>
cudaError_t visit_any_cell(CellKind cell, const F& f) {
  if (!is_formula(cell)) return visit_cell(cell, f);
  const FormulaScope scope(cell);
  return visit_formula(cell_info(cell), f);
}

}  // namespace

cudaError_t launch_step_forward(const RecurrenceForward& args, cudaStream_t stream) {
  return visit_any_cell(args.cell, [&](auto cell) {
    return launch_step_forward<typename decltype(cell)::type>(args, stream);
  });
}

cudaError_t launch_step_backward(const RecurrenceBackward& args, cudaStream_t stream) {
  return visit_any_cell(args.cell, [&](auto cell) {
    return launch_step_backward<typename decltype(cell)::type>(args, stream);
  });
}

cudaError_t launch_grouped_forward(const RecurrenceForward& args, const StepGroup& group,
                                   cudaStream_t stream) {
  return visit_any_cell(args.cell, [&](auto cell) {
    return launch_grouped_forward<typename decltype(cell)::type>(args, group, stream);
  });
}

cudaError_t launch_grouped_backward(const RecurrenceBackward& args, const StepGroup& group,
                                    cudaStream_t stream) {
  return visit_any_cell(args.cell, [&](auto cell) {
    return launch_grouped_backward<typename decltype(cell)::type>(args, group, stream);
  });
}

cudaError_t launch_warp_forward(const FusedForward& args, cudaStream_t stream) {
  return visit_cell(args.layer.cell, [&](auto cell) {
    return launch_warp_forward<typename decltype(cell)::type>(args, stream);
  });
}

cudaError_t launch_tiles_forward(const FusedForward& args, int processors, cudaStream_t stream) {
  return visit_cell(args.layer.cell, [&](auto cell) {
    // Other builds leave out the sources of these kernels, so not even an unused function may call
    // their launchers.
    if constexpr (compiled_for(900)) {
      return launch_tiles_forward<typename decltype(cell)::type>(args, processors, stream);
    } else {
      return cudaErrorNoKernelImageForDevice;
    }
  });
}

bool tiles_supported() { return compiled_for(900) && find_encode_map() != nullptr; }

cudaError_t launch_persistent_forward(const PersistentForward& args, const RecurrencePlan& plan,
                                      cudaStream_t stream) {
  return visit_any_cell(args.sizes.cell, [&](auto cell) {
    return run_persistent<typename decltype(cell)::type>(&args, {args.sizes, plan, stream});
  });
}

cudaError_t launch_persistent_backward(const PersistentBackward& args, const RecurrencePlan& plan,
                                       cudaStream_t stream) {
  return visit_any_cell(args.sizes.cell, [&](auto cell) {
    return run_persistent<typename decltype(cell)::type>(&args, {args.sizes, plan, stream});
  });
}

cudaError_t persistent_fits(bool backward, const PersistentSizes& sizes, const RecurrencePlan& plan,
                            bool* fits) {
  const PersistentCall call{sizes, plan, nullptr, fits};
  *fits = false;
  return visit_any_cell(sizes.cell, [&](auto cell) {
    using Kind = typename decltype(cell)::type;
    return backward ? run_persistent<Kind>(static_cast<const PersistentBackward*>(nullptr), call)
                    : run_persistent<Kind>(static_cast<const PersistentForward*>(nullptr), call);
  });
}

cudaError_t launch_c_states(const PersistentCStates& args, cudaStream_t stream) {
  return visit_any_cell(args.sizes.cell, [&](auto cell) {
    return launch_c_states<typename decltype(cell)::type>(args, stream);
  });
}

}  // namespace treadle
