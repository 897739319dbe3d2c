// How persistent kernels reset the rows of a group (RecurrenceResets). Each kernel is compiled with
// and without resets; without them, this code compiles to nothing and uses no registers.
#pragma once

#include "kernels/recurrent/engine/persistent.cuh"

namespace treadle {

template <class T, class C>
struct RowStates {
  T h;
  C c;
};

// The resets of one group. In its functions, t is the time of a step. It may also be -1 or the
// number of steps; then no row resets.
template <bool any>
struct GroupResets {
  const RecurrenceResets& resets;
  const PersistentSizes& sizes;
  const Group& group;

  // The mark (element of `reset`) that tells whether a row resets before the step at t. In
  // direction 1 this is the mark at t + 1, if the row has that step.
  __device__ __forceinline__ uint32_t mark(int t, int row) const {
    const int steps = static_cast<int>(sizes.steps), marked = t + group.reverse;
    if (!any || t < 0 || marked >= steps || row >= group.rows.active(marked)) return 0;
    const int64_t at = group.rows.start(marked) + group.rows.first + row;
    return __ldg(reinterpret_cast<const unsigned char*>(resets.marks) + at);
  }

  // Whether a row resets before the first step of the forward pass.
  __device__ __forceinline__ bool before_first(int row) const {
    if constexpr (any) return mark(first_time(), row) != 0;
    return false;
  }

  // Whether states may be reset to values other than zeros. Only then does a reset need a load.
  __device__ __forceinline__ bool given() const {
    if constexpr (any) return resets.h != nullptr || resets.c != nullptr;
    return false;
  }

  // The states that a row is reset to before the step at t; zeros if it does not reset.
  template <class T, class C = float>
  __device__ __forceinline__ RowStates<T, C> states(bool anew, int t, int row, int64_t unit) const {
    if constexpr (any) {
      if (anew && given()) return {h<T>(t, row, unit), c<C>(t, row, unit)};
    }
    return {T(0), C{}};
  }

  // The states before the first step of the forward pass, given h0 and c0.
  template <class T>
  __device__ __forceinline__ T first_h(bool anew, T h0, int row, int64_t unit) const {
    if constexpr (any) return anew ? h<T>(first_time(), row, unit) : h0;
    return h0;
  }
  template <class C>
  __device__ __forceinline__ C first_c(bool anew, const C& c0, int row, int64_t unit) const {
    if constexpr (any) return anew ? c<C>(first_time(), row, unit) : c0;
    return c0;
  }

  // Whether the backward pass must return gradients of the replacement states.
  __device__ __forceinline__ bool wanted() const {
    if constexpr (any) return resets.grad_h != nullptr || resets.grad_c != nullptr;
    return false;
  }

  // Stores the requested gradients of the states before the step at t.
  template <class C>
  __device__ __forceinline__ void hand_over(int t, int row, int64_t unit, float grad_h,
                                            const C& grad_c) const {
    constexpr int kParts = math::kPartCount<C>;
    const int64_t at = in_steps(t, row);
    if (resets.grad_h != nullptr) {
      static_cast<float*>(resets.grad_h)[at * sizes.hidden + unit] = grad_h;
    }
    if (resets.grad_c == nullptr) return;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      static_cast<float*>(resets.grad_c)[(at * kParts + p) * sizes.hidden + unit] =
          math::part(grad_c, p);
    }
  }

  // Stores one of the two gradients, that of h or that of c. It arrived in step p of the backward
  // pass. The indices are hidden from the compiler. Otherwise it would compute addresses in every
  // step, or keep them in registers, although few steps need them.
  template <class C>
  __device__ __forceinline__ void hand_over(void* grads, int p, int row, int unit,
                                            const C& grad) const {
    constexpr int kParts = math::kPartCount<C>;
    uint32_t s = p, r = row, u = unit;
    keep(s), keep(r), keep(u);
    if (grads == nullptr) return;
    const int64_t at = in_steps(time<true>(static_cast<int>(s)), static_cast<int>(r));
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      static_cast<float*>(grads)[(at * kParts + k) * sizes.hidden + u] = math::part(grad, k);
    }
  }

  // Stores the requested gradients, and sets grad_h and grad_c to zero.
  template <class C>
  __device__ __forceinline__ void take(int t, int row, int64_t unit, float& grad_h,
                                       C& grad_c) const {
    if (wanted()) hand_over(t, row, unit, grad_h, grad_c);
    grad_h = 0;
    grad_c = C{};
  }

  // The time of step p of a forward pass. In a backward pass, the time of the step whose gradients
  // arrive in step p.
  template <bool backward>
  __device__ __forceinline__ int time(int p) const {
    const int steps = static_cast<int>(sizes.steps);
    return backward ? group.backward_time(p - 1, steps) : group.forward_time(p, steps);
  }

  __device__ __forceinline__ int first_time() const {
    return group.forward_time(0, static_cast<int>(sizes.steps));
  }

  // The index of a row at step t in an array over directions and the rows of all steps.
  __device__ __forceinline__ int64_t in_steps(int t, int row) const {
    const int64_t all_rows = group.rows.start(static_cast<int>(sizes.steps));
    return group.direction * all_rows + group.rows.start(t) + group.rows.first + row;
  }

  // The index of a row in the replacement states before step t.
  __device__ __forceinline__ int64_t place(int t, int row) const {
    if (resets.per_step) return in_steps(t, row);
    return group.direction * sizes.batch + group.rows.first + row;
  }

  // The h to which a row is reset; null if that is zeros.
  __device__ __forceinline__ const uint16_t* h_row(int t, int row) const {
    const auto* all = static_cast<const uint16_t*>(resets.h);
    return all == nullptr ? all : all + place(t, row) * sizes.hidden;
  }

  template <class T>
  __device__ __forceinline__ T h(int t, int row, int64_t unit) const {
    if (resets.h == nullptr) return T{};
    const int64_t at = place(t, row) * sizes.hidden + unit;
    if constexpr (is_half_type<T>) {
      return {__ldg(static_cast<const uint16_t*>(resets.h) + at)};
    } else {
      return __ldg(static_cast<const T*>(resets.h) + at);
    }
  }

  template <class C = float>
  __device__ __forceinline__ C c(int t, int row, int64_t unit) const {
    constexpr int kParts = math::kPartCount<C>;
    C found{};
    if (resets.c == nullptr) return found;
    const int64_t at = place(t, row) * kParts;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      math::part(found, p) =
          __ldg(static_cast<const float*>(resets.c) + (at + p) * sizes.hidden + unit);
    }
    return found;
  }
};

// The marks of a pass, which a warp reads in words. A word is a ballot: each lane votes with the
// mark of one of `rows` rows in one of kSteps steps. A lane loads its mark for the next word while
// the current word is in use, so that no step waits for memory. p counts steps in the order in
// which they are computed. In the forward pass, a bit means that the row resets before step p. In
// the backward pass it means that the row reset before the step whose gradients arrive in step p.
// If `held`, addresses stay in registers and are not recomputed.
template <bool any, bool backward, int rows, bool held = false>
struct PassMarks {
  static constexpr int kSteps = kWarp / rows;
  const GroupResets<any>& resets;
  uint32_t now, ahead;
  // Used if `held` is true and the batch is not packed: the address of the lane's mark at p = 0,
  // its increment per step, the step of this lane in a word, and those p that have marks: count_p,
  // from first_p on.
  const unsigned char* at;
  int each, in_word, first_p, count_p;

  // `first` is the p at which the first word begins.
  __device__ __forceinline__ explicit PassMarks(const GroupResets<any>& resets, int first = 0)
      : resets(resets) {
    if constexpr (any && held) hold();
    load(first);
  }

  __device__ __forceinline__ void hold() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, row = lane % rows;
    const Group& group = resets.group;
    const int steps = static_cast<int>(resets.sizes.steps), batch = group.rows.batch;
    const int marked = resets.template time<backward>(0) + group.reverse;
    in_word = lane / rows;
    each = resets.template time<backward>(1) + group.reverse < marked ? -batch : batch;
    // The first step of a pass can have a mark only in the forward pass of direction 0.
    first_p = !backward && group.reverse == 0 ? 0 : 1;
    count_p = row < group.rows.count ? steps - first_p + (backward && group.reverse == 0) : 0;
    at = reinterpret_cast<const unsigned char*>(resets.resets.marks) + int64_t{marked} * batch +
         group.rows.first + row;
  }

  // The word that begins at p. Called by whole warps, for every kSteps-th p.
  __device__ __forceinline__ uint32_t word(int p) {
    if constexpr (!any) return 0;
    keep(ahead);  // otherwise the compiler votes, and so waits, right after the load
    now = __ballot_sync(~0u, ahead != 0);
    load(p + kSteps);
    return now;
  }

  // A bit for each row that resets before step p; 0 for rows without that step. Called by whole
  // warps, for p = 0, 1, 2 and so on.
  __device__ __forceinline__ uint32_t before(int p) {
    if constexpr (!any) return 0;
    const unsigned in_word = static_cast<unsigned>(p) % kSteps;
    if (in_word == 0) word(p);
    return now >> in_word * rows & (~0u >> (kWarp - rows));
  }

  // Loads a lane's mark of the word that begins at p.
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

// The marks for all threads of a block. One warp loads them, two steps ahead, and writes a word for
// each step to shared memory. So in each step a thread needs only one load from shared memory, and
// does not wait for it. Blocks exchange results in each step, and more work between sending and
// receiving them would make the step longer.
// The lower half of a word has a bit for each row that resets before the step, and the upper half
// has one for each row that resets before the next step.
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

}  // namespace treadle
