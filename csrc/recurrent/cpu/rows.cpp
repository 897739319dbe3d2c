// lltm_layer's steps on the CPU. Engine: rows_forward.h; formula: kernels/math/cells/lltm.h.
// Twin: kernels/recurrent/lltm/step.cu.
#include "recurrent/cpu/rows.h"

#include "kernels/math/cells/lltm.h"
#include "recurrent/cpu/rows_backward.h"

namespace treadle::cpu::TREADLE_ISA {

using math::LltmRecurrence;

void lltm_pack_forward(Dtype dtype, const MatrixView& weight, int64_t hidden, void* panels) {
  visit_floating(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    pack_forward<T>(weight, hidden, LltmRecurrence<acc_t<T>>::kGates,
                    static_cast<acc_t<T>*>(panels));
  });
}

void lltm_pack_backward(Dtype dtype, const MatrixView& weight, int64_t hidden, void* panels) {
  visit_floating(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    pack_backward<T>(weight, hidden, LltmRecurrence<acc_t<T>>::kGates,
                     static_cast<acc_t<T>*>(panels));
  });
}

void lltm_layer_forward(const RecurrenceForward& args, const void* panels, int64_t begin,
                        int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    ForwardRows<LltmRecurrence, T>(args, static_cast<const acc_t<T>*>(panels), begin, end).run();
  });
}

void lltm_layer_backward(const RecurrenceBackward& args, const void* panels, int64_t begin,
                         int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    BackwardRows<LltmRecurrence, T>(args, static_cast<const acc_t<T>*>(panels), begin, end).run();
  });
}

void lltm_layer_c_states(const RecurrenceCStates& args, int64_t begin, int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    recurrence_c_states<LltmRecurrence, T>(args, begin, end);
  });
}

}  // namespace treadle::cpu::TREADLE_ISA
