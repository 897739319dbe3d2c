// Where rows of a group reset (RecurrenceResets), for the persistent kernels. Each of them is
// compiled with resets and without: without, nothing of this is left, and no register is taken.
#pragma once

#include "kernels/recurrent/engine/persistent.cuh"

namespace treadle {

template <class T>
struct RowStates {
  T h;
  float c;
};

// t: the time of a step, or -1 or `steps`, where there is none and nothing resets.
template <bool any>
struct GroupResets {
  const RecurrenceResets& resets;
  const PersistentSizes& sizes;
  const Group& group;

  // The mark that says whether a row resets before the step at t. In direction 1 it is that of
  // the step ahead, which the row must have.
  __device__ __forceinline__ uint32_t mark(int t, int row) const {
    const int steps = static_cast<int>(sizes.steps), marked = t + group.direction;
    if (!any || t < 0 || marked >= steps || row >= group.rows.active(marked)) return 0;
    const int64_t at = group.rows.start(marked) + group.rows.first + row;
    return __ldg(reinterpret_cast<const unsigned char*>(resets.marks) + at);
  }

  // Whether a row resets before the first step of the pass forward.
  __device__ __forceinline__ bool before_first(int row) const {
    if constexpr (any) return mark(first_time(), row) != 0;
    return false;
  }

  // Whether states may reset to anything but zeros: only then does a reset need a load.
  __device__ __forceinline__ bool given() const {
    if constexpr (any) return resets.h != nullptr || resets.c != nullptr;
    return false;
  }

  // The states that a row is reset to before the step at t; zeros if it does not reset.
  template <class T>
  __device__ __forceinline__ RowStates<T> states(bool anew, int t, int row, int64_t unit) const {
    if constexpr (any) {
      if (anew && given()) return {h<T>(t, row, unit), c(t, row, unit)};
    }
    return {T(0), 0.0f};
  }

  // The states before the first step of the pass forward, given h0 and c0.
  template <class T>
  __device__ __forceinline__ T first_h(bool anew, T h0, int row, int64_t unit) const {
    if constexpr (any) return anew ? h<T>(first_time(), row, unit) : h0;
    return h0;
  }
  __device__ __forceinline__ float first_c(bool anew, float c0, int row, int64_t unit) const {
    if constexpr (any) return anew ? c(first_time(), row, unit) : c0;
    return c0;
  }

  // Backward: whether anybody wants the gradients of what replaced the states.
  __device__ __forceinline__ bool wanted() const {
    if constexpr (any) return resets.grad_h != nullptr || resets.grad_c != nullptr;
    return false;
  }

  // Stores what has reached the states before the step at t, what of it is wanted.
  __device__ __forceinline__ void hand_over(int t, int row, int64_t unit, float grad_h,
                                            float grad_c) const {
    const int64_t at = in_steps(t, row, unit);
    if (resets.grad_h != nullptr) static_cast<float*>(resets.grad_h)[at] = grad_h;
    if (resets.grad_c != nullptr) static_cast<float*>(resets.grad_c)[at] = grad_c;
  }

  // The same of either, before step p of the pass backward. What says where is hidden: else every
  // step computes addresses, or registers hold them, for the few that need them.
  __device__ __forceinline__ void hand_over(void* grads, int p, int row, int unit,
                                            float grad) const {
    uint32_t s = p, r = row, u = unit;
    keep(s), keep(r), keep(u);
    if (grads == nullptr) return;
    static_cast<float*>(grads)[in_steps(time<true>(static_cast<int>(s)), r, u)] = grad;
  }

  // Hands it over, and it goes no further.
  __device__ __forceinline__ void take(int t, int row, int64_t unit, float& grad_h,
                                       float& grad_c) const {
    if (wanted()) hand_over(t, row, unit, grad_h, grad_c);
    grad_h = grad_c = 0;
  }

  // The time of step p of the pass; backward, of the step whose gradients arrive in it.
  template <bool backward>
  __device__ __forceinline__ int time(int p) const {
    const int steps = static_cast<int>(sizes.steps);
    return backward ? group.backward_time(p - 1, steps) : group.forward_time(p, steps);
  }

  __device__ __forceinline__ int first_time() const {
    return group.forward_time(0, static_cast<int>(sizes.steps));
  }

  // A unit of a row at step t in an array over D and S.
  __device__ __forceinline__ int64_t in_steps(int t, int row, int64_t unit) const {
    const int64_t all_rows = group.rows.start(static_cast<int>(sizes.steps));
    const int64_t at = group.direction * all_rows + group.rows.start(t) + group.rows.first + row;
    return at * sizes.hidden + unit;
  }

  // A unit of a row in what replaces the states before step t.
  __device__ __forceinline__ int64_t place(int t, int row, int64_t unit) const {
    if (resets.per_step) return in_steps(t, row, unit);
    return (group.direction * sizes.batch + group.rows.first + row) * sizes.hidden + unit;
  }

  // null: zeros.
  __device__ __forceinline__ const uint16_t* h_row(int t, int row) const {
    const auto* all = static_cast<const uint16_t*>(resets.h);
    return all == nullptr ? all : all + place(t, row, 0);
  }

  template <class T>
  __device__ __forceinline__ T h(int t, int row, int64_t unit) const {
    if (resets.h == nullptr) return T{};
    if constexpr (is_half_type<T>) {
      return {__ldg(static_cast<const uint16_t*>(resets.h) + place(t, row, unit))};
    } else {
      return __ldg(static_cast<const T*>(resets.h) + place(t, row, unit));
    }
  }

  __device__ __forceinline__ float c(int t, int row, int64_t unit) const {
    if (resets.c == nullptr) return 0;
    return __ldg(static_cast<const float*>(resets.c) + place(t, row, unit));
  }
};

// The marks along a pass, as a warp reads them: a word is the ballot of `rows` rows in as many
// steps as lanes allow. A lane asks for its mark of a word a whole word before, so that no step
// waits for memory. p counts steps in the order in which they are computed. Forward, a bit says
// that the row resets before step p; backward, that it did before the step whose gradients
// arrive in step p. `held`: there are registers for addresses, which then need not be computed.
template <bool any, bool backward, int rows, bool held = false>
struct PassMarks {
  static constexpr int kSteps = kWarp / rows;
  const GroupResets<any>& resets;
  uint32_t now, ahead;
  // Without lengths: where a lane's mark lies at p = 0, what a step adds, and the p that have one.
  const unsigned char* at;
  int each, in_word, first_p, count_p;

  // `first`: the p that the first word begins with.
  __device__ __forceinline__ explicit PassMarks(const GroupResets<any>& resets, int first = 0)
      : resets(resets) {
    if constexpr (any && held) hold();
    load(first);
  }

  __device__ __forceinline__ void hold() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % rows;
    const Group& group = resets.group;
    const int steps = static_cast<int>(resets.sizes.steps), batch = group.rows.batch;
    const int marked = resets.template time<backward>(0) + group.direction;
    in_word = lane / rows;
    each = resets.template time<backward>(1) + group.direction < marked ? -batch : batch;
    // The first step of a pass has no state before it but in direction 0 forward.
    first_p = !backward && group.direction == 0 ? 0 : 1;
    count_p = row < group.rows.count ? steps - first_p + (backward && group.direction == 0) : 0;
    at = reinterpret_cast<const unsigned char*>(resets.resets.marks) + int64_t{marked} * batch +
         group.rows.first + row;
  }

  // The word that begins with p. By whole warps, for every kSteps-th p.
  __device__ __forceinline__ uint32_t word(int p) {
    if constexpr (!any) return 0;
    keep(ahead);  // else the compiler asks, and so waits, where it loads
    now = __ballot_sync(~0u, ahead != 0);
    load(p + kSteps);
    return now;
  }

  // Bits of rows, none of a row that has no such step. By whole warps, for p = 0, 1, 2 and so on.
  __device__ __forceinline__ uint32_t before(int p) {
    if constexpr (!any) return 0;
    const unsigned in_word = static_cast<unsigned>(p) % kSteps;
    if (in_word == 0) word(p);
    return now >> in_word * rows & (~0u >> (kWarp - rows));
  }

  // Loads a lane's step and row of the word that begins with p.
  __device__ __forceinline__ void load(int p) {
    if constexpr (!any) return;
    if (held && resets.sizes.starts == nullptr) {
      const int own = p + in_word;
      ahead = 0;
      if (static_cast<unsigned>(own - first_p) < static_cast<unsigned>(count_p)) {
        ahead = __ldg(at + int64_t{own} * each);
      }
      return;
    }
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    ahead = resets.mark(resets.template time<backward>(p + lane / rows), lane % rows);
  }
};

// Marks as the threads of a block read them: one warp asks for them, two steps ahead, and leaves a
// word for each step in shared memory. What is added to a step is a load that waits for nothing:
// whatever a step does between what it sends and the wait for what others have sent, it pays for.
// A word has the bits of rows before the step and, in its upper half, before the next one.
template <bool any>
struct SharedMarks {
  uint32_t words, last;

  template <class Marks>
  __device__ __forceinline__ void leave(Marks& marks, int step) {
    if constexpr (!any) return;
    const uint32_t next = marks.before(step + 1);
    if (threadIdx.x % kWarp == 0) ptx::store4(words + step % 4 * 4, last | next << 16);
    last = next;
  }

  __device__ __forceinline__ uint32_t of(int step) const {
    if constexpr (any) return ptx::load4(words + step % 4u * 4);
    return 0;
  }
};

// Which of a pair of kernels runs. No arguments: the planner asks, for whom both are one.
template <class Args>
bool any_resets(const Args* args) {
  return args != nullptr && args->resets.marks != nullptr;
}

}  // namespace treadle
