// The kernel rows_map computes out[i] = f(in[i]...) if each row of an operand is dense or repeats
// one element. Dtypes may differ, and strides between rows may have any value.
#pragma once

#include <algorithm>

#include "kernels/elementwise/strided_map.cuh"

namespace treadle {

// The layout of an operand's rows. kAligned: aligned accesses can load a vector of n elements.
enum class InRow : int8_t { kAligned, kAnywhere, kRepeated };

template <int operands>
struct Rows {
  Strided<operands> rows;  // all dimensions but the fastest
  uint32_t row_size;
  FastDivide vectors_per_row;
  InRow in_row[operands];

  Rows(const ElementwiseArgs& args, int n) : rows(args, 1), row_size(args.sizes[0]) {
    vectors_per_row = FastDivide(ceil_div(row_size, static_cast<uint32_t>(n)));
    for (int i = 0; i < operands; ++i) {
      const int64_t access = std::min<int64_t>(16, n * size_of(args.dtypes[i]));
      bool aligned = reinterpret_cast<uintptr_t>(args.data[i]) % access == 0;
      for (int d = 1; d < args.ndim; ++d) aligned = aligned && args.strides[i][d] % access == 0;
      in_row[i] = args.strides[i][0] == 0 ? InRow::kRepeated
                  : aligned               ? InRow::kAligned
                                          : InRow::kAnywhere;
    }
  }

  static bool fits(const ElementwiseArgs& args, int n) {
    if (args.ndim == 0 || args.sizes[0] < 2 * n) return false;
    for (int i = 0; i < operands; ++i) {
      const int64_t stride = args.strides[i][0];
      if (stride != size_of(args.dtypes[i]) && (stride != 0 || i == 0)) return false;
    }
    return true;
  }
};

// Loads up to n elements of a row, as common_t.
template <class stored_t, class common_t, int n>
__device__ __forceinline__ void load_row(const char* at, InRow in_row, int count,
                                         Vector<common_t, n>& out) {
  const auto* from = reinterpret_cast<const stored_t*>(at);
  Vector<stored_t, n> stored = {};
  if (in_row == InRow::kAligned && count == n) {
    stored = *reinterpret_cast<const Vector<stored_t, n>*>(at);
  } else {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      if (e < count) stored.value[e] = from[in_row == InRow::kRepeated ? 0 : e];
    }
  }
  if constexpr (std::is_same_v<stored_t, common_t>) {
    out = stored;
  } else {
#pragma unroll
    for (int e = 0; e < n; ++e) out.value[e] = Narrow<common_t>::from(plain(stored.value[e]));
  }
}

template <class stored_t, class common_t, int n>
__device__ __forceinline__ void store_row(char* at, InRow in_row, int count,
                                          const Vector<common_t, n>& values) {
  Vector<stored_t, n> stored;
  if constexpr (std::is_same_v<stored_t, common_t>) {
    stored = values;
  } else {
#pragma unroll
    for (int e = 0; e < n; ++e) stored.value[e] = Narrow<stored_t>::from(plain(values.value[e]));
  }
  if (in_row == InRow::kAligned && count == n) {
    *reinterpret_cast<Vector<stored_t, n>*>(at) = stored;
  } else {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      if (e < count) reinterpret_cast<stored_t*>(at)[e] = stored.value[e];
    }
  }
}

template <class common_t, bool kCast, int n, int kInputs, class F>
__global__ void __launch_bounds__(kBlockSize)
    rows_map(F f, const __grid_constant__ Rows<kInputs + 1> args, uint32_t vectors) {
  begin_kernel();
  // Threads past the end repeat the last vector without storing it, because f may vote across the
  // warp.
  const uint32_t own = blockIdx.x * kBlockSize + threadIdx.x;
  const uint32_t index = min(own, vectors - 1);
  const uint32_t row = args.vectors_per_row(index);
  const uint32_t first = (index - row * args.vectors_per_row.divisor) * n;
  const int count = min(static_cast<uint32_t>(n), args.row_size - first);
  int32_t offset[kInputs + 1];
  args.rows.offsets(row, offset);

  Vector<common_t, n> in[kInputs], out;
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    const InRow in_row = args.in_row[i + 1];
    const char* at = args.rows.data[i + 1] + offset[i + 1];
    const uint32_t skipped = in_row == InRow::kRepeated ? 0 : first;
    if constexpr (kCast) {
      visit(args.rows.dtypes[i + 1], [&](auto type) {
        using stored_t = typename decltype(type)::type;
        load_row<stored_t>(at + skipped * sizeof(stored_t), in_row, count, in[i]);
      });
    } else {
      load_row<common_t>(at + skipped * sizeof(common_t), in_row, count, in[i]);
    }
  }
  apply(f, out, in);
  if (own >= vectors) return;
  char* at = args.rows.data[0] + offset[0];
  if constexpr (kCast) {
    visit(args.rows.dtypes[0], [&](auto type) {
      using stored_t = typename decltype(type)::type;
      store_row<stored_t>(at + first * sizeof(stored_t), args.in_row[0], count, out);
    });
  } else {
    store_row<common_t>(at + first * sizeof(common_t), args.in_row[0], count, out);
  }
}

template <class common_t, bool kCast, int kInputs, class F>
cudaError_t launch_rows(const ElementwiseArgs& args, const F& f, cudaStream_t stream) {
  constexpr int n = 16 / sizeof(common_t);
  const Rows<kInputs + 1> rows(args, n);
  const auto vectors =
      static_cast<uint32_t>(args.numel / args.sizes[0]) * rows.vectors_per_row.divisor;
  const LaunchShape shape = {ceil_div(vectors, uint32_t{kBlockSize}), 1, 1, kBlockSize, 0, n, n};
  return launch(rows_map<common_t, kCast, n, kInputs, F>, shape, stream, f, rows, vectors);
}

}  // namespace treadle
