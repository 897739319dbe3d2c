#include "recurrent/run/cpu_parts.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "kernels/common/cpu/subnormals.h"

namespace treadle {
namespace {

// The minimum work of a thread: about 50 us of multiplications.
constexpr int64_t kWork = int64_t{1} << 21;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The rows are divided into `rows` parts, and the units of each of these into `units` parts.
struct Division {
  int64_t rows = 1, units = 1;
};

// Threads that share rows wait for each other in every step. This takes as long as kBarrier
// multiplications. A row by itself takes as long as kFewRows rows, because its product only reads
// the weights once.
Division divided(const CpuSteps& a, int64_t threads) {
  constexpr int64_t kBarrier = int64_t{1} << 15, kFewRows = 3;
  const int64_t row_blocks = divide_up(a.batch, cpu::kRowBlock);
  const int64_t unit_blocks = divide_up(a.hidden, cpu::unit_block(a.acc_bytes));
#if AT_PARALLEL_OPENMP
  // All threads of an OpenMP region run at the same time. Tasks of other thread pools may not.
  const int64_t most_units = std::min(threads, unit_blocks);
#else
  const int64_t most_units = a.reads_all_units ? 1 : std::min(threads, unit_blocks);
#endif
  Division best;
  double least = 0;
  for (int64_t units = 1; units <= most_units; ++units) {
    const Division found{std::min(threads / units, row_blocks), units};
    const int64_t rows = std::min(a.batch, divide_up(row_blocks, found.rows) * cpu::kRowBlock);
    const double share = static_cast<double>(divide_up(unit_blocks, units)) / unit_blocks;
    const bool waits = a.reads_all_units && units > 1;
    const double cost = share * std::max(rows, kFewRows) * a.step_work + (waits ? kBarrier : 0);
    if (units == 1 || cost < least) best = found, least = cost;
  }
  return best;
}

// Where each of the parts of the rows begins, and the end of the last part. The parts have whole
// blocks and about equal numbers of steps, because rows of a packed batch differ in length.
struct RowRanges {
  std::vector<int64_t> begins;
  int64_t total = 0;  // steps of all blocks

  explicit RowRanges(const CpuSteps& a) : before_(divide_up(a.batch, cpu::kRowBlock) + 1) {
    const int64_t blocks = static_cast<int64_t>(before_.size()) - 1;
    for (int64_t s = 0; s < a.step_count; ++s) {
      ++before_[divide_up(a.steps[s].rows, cpu::kRowBlock)];
    }
    for (int64_t b = blocks - 1; b > 0; --b) before_[b] += before_[b + 1];
    before_[0] = 0;
    for (int64_t b = 1; b <= blocks; ++b) before_[b] += before_[b - 1];
    total = before_[blocks];
  }

  void divide(int64_t parts, int64_t batch) {
    begins = {0};
    for (int64_t part = 1; part < parts; ++part) {
      const double share = static_cast<double>(total) * part / parts;
      const auto above = std::lower_bound(before_.begin(), before_.end(), share);
      const bool below = above != before_.begin() && share - *(above - 1) < *above - share;
      begins.push_back(((above - before_.begin()) - (below ? 1 : 0)) * cpu::kRowBlock);
    }
    begins.push_back(batch);
  }

 private:
  std::vector<int64_t> before_;  // before_[b]: the number of steps of blocks 0 to b - 1
};

}  // namespace

void over_parts(const CpuSteps& a, const std::function<void(const cpu::RowsPart&)>& f) {
  RowRanges rows(a);
  const int64_t most = rows.total * a.step_work * cpu::kRowBlock / kWork;
  const int64_t available = at::in_parallel_region() ? 1 : at::get_num_threads();
  const Division parts = divided(a, std::clamp<int64_t>(most, 1, available));
  rows.divide(parts.rows, a.batch);
  const int64_t block = cpu::unit_block(a.acc_bytes), blocks = divide_up(a.hidden, block);
  const bool shares = a.reads_all_units && parts.units > 1;
  std::deque<cpu::StepBarrier> barriers;
  std::vector<Tensor> h;
  for (int64_t r = 0; r < parts.rows && shares; ++r) {
    const int64_t count = rows.begins[r + 1] - rows.begins[r];
    barriers.emplace_back(parts.units);
    h.push_back(at::empty({cpu::recurrent_h_bytes(count, a.hidden, a.acc_bytes)}, at::kByte));
  }
  const auto run = [&](int64_t r, int64_t first, int64_t last) {
    const auto unit_at = [&](int64_t part) {
      return std::min(a.hidden, blocks * part / parts.units * block);
    };
    cpu::RowsPart part{rows.begins[r], std::min(rows.begins[r + 1], a.batch), unit_at(first),
                       unit_at(last)};
    if (part.begin >= part.end) return;
    if (!shares) return f(part);
    part.barrier = &barriers[r];
    part.count = last - first;
    part.h = h[r].data_ptr();
    try {
      f(part);
    } catch (...) {
      barriers[r].fail();
      throw;
    }
  };
  at::parallel_for(0, parts.rows * parts.units, 1, [&](int64_t begin, int64_t end) {
    const cpu::FlushSubnormals flush;
    // If there are fewer threads than parts, a thread computes several parts of the same rows at
    // once, because it could not wait for itself.
    for (int64_t r = begin / parts.units; r * parts.units < end; ++r) {
      const int64_t first = r * parts.units;
      run(r, std::max(begin - first, int64_t{0}), std::min(end - first, parts.units));
    }
  });
}

void over_units(int64_t hidden, int64_t acc_bytes, int64_t elements,
                const std::function<void(int64_t first, int64_t last)>& f) {
  constexpr int64_t kElements = int64_t{1} << 15;  // the least for a thread
  const int64_t block = cpu::unit_block(acc_bytes), blocks = divide_up(hidden, block);
  const int64_t grain = divide_up(kElements * blocks, std::max<int64_t>(elements, 1));
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    f(begin * block, std::min(end * block, hidden));
  });
}

}  // namespace treadle
