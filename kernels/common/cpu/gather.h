// Runs a formula over matrices of any strides. Long dense rows are computed without a copy. Short,
// strided and expanded rows are gathered into blocks on the stack, and their results are scattered
// from there. There are N independent problems of R rows and C columns. Elements are numbered over
// [N, R, C], and a call computes elements begin to end, so that a parallel loop can divide them
// anywhere. This file is compiled without torch, once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/common/cpu/convert.h"

namespace treadle::cpu::TREADLE_ISA {

// Formulas compute whole groups of this many elements. Results beyond the end of a block are
// unused.
inline constexpr int64_t kLanes = 16;

// Computes n elements of dense outputs from dense inputs, in their stored types. n is a multiple of
// kLanes.
using Formula = void (*)(const char* const* in, char* const* out, int64_t n);

struct GatherShape {
  int64_t rows, columns;  // of a problem
};

// An array [N, R, C] with strides in elements (0 where expanded). If `data` is null, the formula
// reads zeros.
struct GatherInput {
  const char* data;
  int64_t problem_stride, row_stride, column_stride, element_size;
};

// The columns from `first` on of a dense matrix [N * R, row_size]. If `data` is null, nothing is
// stored.
struct GatherOutput {
  void* data;
  int64_t row_size, first, element_size;
};

namespace detail {

inline constexpr int64_t kBlock = 256;
// Runs of at least this length are computed without a copy.
inline constexpr int64_t kLongRun = 64;
inline constexpr int64_t kMaxElementSize = 8;

struct alignas(64) Buffer {
  char bytes[kBlock * kMaxElementSize];
};

// This is read in place of a missing input.
inline constexpr Buffer kZeros = {};

// Consecutive elements of one row.
struct Run {
  int64_t problem, row, column, size;
};

inline Run run_at(const GatherShape& shape, int64_t element, int64_t end) {
  const int64_t row = element / shape.columns, column = element % shape.columns;
  return {row / shape.rows, row % shape.rows, column,
          std::min(shape.columns - column, end - element)};
}

inline const char* address(const GatherInput& input, const Run& run) {
  const int64_t element = run.problem * input.problem_stride + run.row * input.row_stride +
                          run.column * input.column_stride;
  return input.data + element * input.element_size;
}

inline char* address(const GatherOutput& output, const Run& run, const GatherShape& shape) {
  const int64_t row = run.problem * shape.rows + run.row;
  const int64_t element = row * output.row_size + output.first + run.column;
  return static_cast<char*>(output.data) + element * output.element_size;
}

template <class Word>
void copy_words(const char* src, int64_t stride, char* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    write(dst + i * int64_t{sizeof(Word)}, read<Word>(src + i * stride * int64_t{sizeof(Word)}));
  }
}

// Copies n elements, `stride` elements apart, to dense memory.
inline void gather(const char* src, int64_t stride, int64_t element_size, char* dst, int64_t n) {
  if (stride == 1 && n >= kLanes) {
    std::memcpy(dst, src, n * element_size);
  } else if (element_size == 2) {
    copy_words<uint16_t>(src, stride, dst, n);
  } else if (element_size == 4) {
    copy_words<uint32_t>(src, stride, dst, n);
  } else {
    copy_words<uint64_t>(src, stride, dst, n);
  }
}

}  // namespace detail

template <size_t kInputs, size_t kOutputs>
struct GatherTask {
  GatherShape shape;
  GatherInput inputs[kInputs];
  GatherOutput outputs[kOutputs];
  Formula formula;

  void run(int64_t begin, int64_t end) const {
    Scratch scratch;
    const bool dense = std::all_of(inputs, inputs + kInputs, [](const GatherInput& input) {
      return input.data == nullptr || input.column_stride == 1;
    });
    while (begin < end) {
      const Run run = detail::run_at(shape, begin, end);
      int64_t n = std::min(run.size, kBlock) / kLanes * kLanes;
      if (dense && run.size >= detail::kLongRun) {
        run_in_place(scratch, run, n);
      } else {
        n = std::min(kBlock, end - begin);
        run_gathered(scratch, begin, n);
      }
      begin += n;
    }
  }

 private:
  using Run = detail::Run;
  static constexpr int64_t kBlock = detail::kBlock;

  // Memory for one block.
  struct Scratch {
    detail::Buffer in[kInputs], out[kOutputs];
    const char* sources[kInputs];
    char* targets[kOutputs];
  };

  void run_in_place(Scratch& s, const Run& run, int64_t n) const {
    for (size_t k = 0; k < kInputs; ++k) {
      s.sources[k] = inputs[k].data ? detail::address(inputs[k], run) : detail::kZeros.bytes;
    }
    for (size_t k = 0; k < kOutputs; ++k) {
      s.targets[k] = outputs[k].data ? detail::address(outputs[k], run, shape) : s.out[k].bytes;
    }
    formula(s.sources, s.targets, n);
  }

  void run_gathered(Scratch& s, int64_t begin, int64_t n) const {
    const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
    for (size_t k = 0; k < kInputs; ++k) {
      const int64_t size = inputs[k].element_size;
      s.sources[k] = inputs[k].data ? s.in[k].bytes : detail::kZeros.bytes;
      std::memset(s.in[k].bytes + n * size, 0, (padded - n) * size);
    }
    for (size_t k = 0; k < kOutputs; ++k) s.targets[k] = s.out[k].bytes;
    Run run;
    for (int64_t done = 0; done < n; done += run.size) {
      run = detail::run_at(shape, begin + done, begin + n);
      for (size_t k = 0; k < kInputs; ++k) {
        const GatherInput& input = inputs[k];
        if (input.data == nullptr) continue;
        detail::gather(detail::address(input, run), input.column_stride, input.element_size,
                       s.in[k].bytes + done * input.element_size, run.size);
      }
    }
    formula(s.sources, s.targets, padded);
    for (int64_t done = 0; done < n; done += run.size) {
      run = detail::run_at(shape, begin + done, begin + n);
      for (size_t k = 0; k < kOutputs; ++k) {
        const int64_t size = outputs[k].element_size;
        if (outputs[k].data == nullptr) continue;
        detail::gather(s.out[k].bytes + done * size, 1, size,
                       detail::address(outputs[k], run, shape), run.size);
      }
    }
  }
};

}  // namespace treadle::cpu::TREADLE_ISA
