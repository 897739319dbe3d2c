// Where rows of a group start anew (RecurrenceResets), for the persistent kernels. Each of them is
// compiled with resets and without: without, nothing of this is left, and no register is taken.
#pragma once

#include "kernels/recurrent/persistent.cuh"

namespace treadle {

template <class T>
struct RowStates {
  T h;
  float c;
};

// Of a lane: its row of each tile.
template <int tiles>
struct TileMarks {
  uint32_t of[tiles];
};

// t: the time of a step, or -1 or `steps`, where there is none and nothing starts anew.
template <bool any>
struct GroupResets {
  const RecurrenceResets& resets;
  const PersistentSizes& sizes;
  const Group& group;

  // The mark that says whether a row starts anew before the step at t. In direction 1 it is that of
  // the step ahead, which the row must have. Read long before it is asked, for its latency.
  __device__ __forceinline__ uint32_t mark(int t, int row) const {
    const int steps = static_cast<int>(sizes.steps), marked = t + group.direction;
    if (!any || t < 0 || marked >= steps || row >= group.rows.active(marked)) return 0;
    const int64_t at = group.rows.start(marked) + group.rows.first + row;
    return __ldg(reinterpret_cast<const unsigned char*>(resets.marks) + at);
  }
  // keep(): else the compiler asks, and so waits, where the mark is read.
  static __device__ __forceinline__ bool is_set(uint32_t mark) {
    if (!any) return false;
    keep(mark);
    return mark != 0;
  }
  __device__ __forceinline__ bool before(int t, int row) const { return is_set(mark(t, row)); }

  // The same for the rows of `tiles` tiles of 8, of which a lane reads row lane % 8. bits(): of
  // rows that start anew, by whole warps.
  template <int tiles>
  __device__ __forceinline__ TileMarks<tiles> tile_marks(int t) const {
    TileMarks<tiles> marks;
    const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int j = 0; j < tiles; ++j) marks.of[j] = mark(t, j * 8 + lane % 8);
    return marks;
  }
  template <int tiles>
  static __device__ __forceinline__ uint32_t bits(const TileMarks<tiles>& marks) {
    uint32_t rows = 0;
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
      if (any) rows |= (__ballot_sync(~0u, is_set(marks.of[j])) & 0xff) << 8 * j;
    }
    return rows;
  }

  // What replaces the states of a row before the step at t; zeros if it does not start anew.
  template <class T>
  __device__ __forceinline__ RowStates<T> states(bool anew, int t, int row, int64_t unit) const {
    return {anew ? h<T>(t, row, unit) : T(0), anew ? c(t, row, unit) : 0.0f};
  }

  // The states before the first step of the pass forward, given h0 and c0.
  template <class T>
  __device__ __forceinline__ T first_h(T h0, int row, int64_t unit) const {
    return before(first_time(), row) ? h<T>(first_time(), row, unit) : h0;
  }
  __device__ __forceinline__ float first_c(float c0, int row, int64_t unit) const {
    return before(first_time(), row) ? c(first_time(), row, unit) : c0;
  }

  // Backward: hands over what has reached the states before the step at t, and goes no further.
  __device__ __forceinline__ void take(int t, int row, int64_t unit, float& grad_h,
                                       float& grad_c) const {
    const int64_t at = in_steps(t, row, unit);
    if (resets.grad_h != nullptr) static_cast<float*>(resets.grad_h)[at] = grad_h;
    if (resets.grad_c != nullptr) static_cast<float*>(resets.grad_c)[at] = grad_c;
    grad_h = grad_c = 0;
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
    if (resets.h == nullptr) return T(0);
    return __ldg(static_cast<const T*>(resets.h) + place(t, row, unit));
  }

  __device__ __forceinline__ float c(int t, int row, int64_t unit) const {
    if (resets.c == nullptr) return 0;
    return __ldg(static_cast<const float*>(resets.c) + place(t, row, unit));
  }
};

// Which of a pair of kernels runs. No arguments: the planner asks, for whom both are one.
template <class Args>
bool any_resets(const Args* args) {
  return args != nullptr && args->resets.marks != nullptr;
}

}  // namespace treadle
