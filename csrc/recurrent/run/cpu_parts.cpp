#include "recurrent/run/cpu_parts.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "kernels/common/cpu/subnormals.h"
#include "recurrent/run/step_barrier.h"

namespace treadle {
namespace {

// The minimum work of a thread: about 50 us of multiplications.
constexpr int64_t kWork = int64_t{1} << 21;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The rows are divided into `rows` parts, and the units of each of these into `units` parts.
struct Division {
  int64_t rows = 1, units = 1;
};

// Takes the division whose longest part takes the least time. In every step, a part reads the
// weights of its units, which takes as long as the products of another row, and threads that share
// rows wait for each other, which takes as long as kWait multiplications for each of them.
Division divided(const CpuSteps& a, int64_t threads) {
  constexpr int64_t kWait = 1 << 14;
  const int64_t row_blocks = divide_up(a.batch, cpu::kRowBlock);
  const int64_t unit_blocks = divide_up(a.hidden, cpu::unit_block(a.acc_bytes));
  // All threads of an OpenMP region run at the same time. Tasks of other thread pools may not.
  const bool may_wait = AT_PARALLEL_OPENMP;
  const int64_t most_units = a.reads_all_units && !may_wait ? 1 : std::min(threads, unit_blocks);
  Division best;
  double least = 0;
  for (int64_t units = 1; units <= most_units; ++units) {
    const Division found{std::min(threads / units, row_blocks), units};
    const int64_t rows = std::min(a.batch, divide_up(row_blocks, found.rows) * cpu::kRowBlock);
    const double share = static_cast<double>(divide_up(unit_blocks, units)) / unit_blocks;
    const int64_t waits = a.reads_all_units && units > 1 ? kWait * units : 0;
    const double cost = share * (rows + 1) * a.step_work + waits;
    if (units == 1 || cost < least) best = found, least = cost;
  }
  return best;
}

// The number of steps of blocks 0 to b - 1 of the rows, for each b.
std::vector<int64_t> steps_before(const CpuSteps& a) {
  const int64_t blocks = divide_up(a.batch, cpu::kRowBlock);
  std::vector<int64_t> before(blocks + 1);
  for (int64_t s = 0; s < a.step_count; ++s) ++before[divide_up(a.steps[s].rows, cpu::kRowBlock)];
  for (int64_t b = blocks - 1; b > 0; --b) before[b] += before[b + 1];
  before[0] = 0;
  for (int64_t b = 1; b <= blocks; ++b) before[b] += before[b - 1];
  return before;
}

}  // namespace

// The parts of the rows have whole blocks and about equal numbers of steps, because rows of a
// packed batch differ in length.
CpuParts::CpuParts(const CpuSteps& steps) : steps_(steps), begins_{0} {
  const std::vector<int64_t> before = steps_before(steps);
  const int64_t total = before.back();
  const int64_t most = total * steps.step_work * cpu::kRowBlock / kWork;
  const int64_t available = at::in_parallel_region() ? 1 : at::get_num_threads();
  const Division parts = divided(steps, std::clamp<int64_t>(most, 1, available));
  for (int64_t part = 1; part < parts.rows; ++part) {
    const double share = static_cast<double>(total) * part / parts.rows;
    const auto above = std::lower_bound(before.begin(), before.end(), share);
    const bool below = above != before.begin() && share - *(above - 1) < *above - share;
    begins_.push_back(((above - before.begin()) - (below ? 1 : 0)) * cpu::kRowBlock);
  }
  begins_.push_back(steps.batch);
  units_ = parts.units;
}

double CpuParts::rows_of_a_step() const {
  int64_t rows = 0;
  for (int64_t s = 0; s < steps_.step_count; ++s) rows += steps_.steps[s].rows;
  return static_cast<double>(rows) / (steps_.step_count * (begins_.size() - 1));
}

void CpuParts::run(const std::function<void(const cpu::RowsPart&)>& f) const {
  const CpuSteps& a = steps_;
  const int64_t count = static_cast<int64_t>(begins_.size()) - 1;
  const int64_t block = cpu::unit_block(a.acc_bytes), blocks = divide_up(a.hidden, block);
  const bool shares = a.reads_all_units && units_ > 1;
  std::deque<StepBarrier> barriers;
  std::vector<Tensor> h;
  for (int64_t r = 0; r < count && shares; ++r) {
    barriers.emplace_back(units_);
    const int64_t rows = begins_[r + 1] - begins_[r];
    h.push_back(at::empty({cpu::recurrent_h_bytes(rows, a.hidden, a.acc_bytes)}, at::kByte));
  }
  const auto unit_at = [&](int64_t part) {
    return std::min(a.hidden, blocks * part / units_ * block);
  };
  const auto run = [&](int64_t r, int64_t first, int64_t last) {
    cpu::RowsPart part{begins_[r], begins_[r + 1], unit_at(first), unit_at(last)};
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
  at::parallel_for(0, count * units_, 1, [&](int64_t begin, int64_t end) {
    const cpu::FlushSubnormals flush;
    // If there are fewer threads than parts, a thread computes several parts of the same rows at
    // once, because it could not wait for itself.
    for (int64_t r = begin / units_; r * units_ < end; ++r) {
      run(r, std::max(begin - r * units_, int64_t{0}), std::min(end - r * units_, units_));
    }
  });
}

void CpuParts::over_units(int64_t elements, const std::function<void(int64_t, int64_t)>& f) const {
  // A thread that runs all steps would have to fetch what other threads packed from their caches.
  if (single()) return f(0, steps_.hidden);
  constexpr int64_t kElements = int64_t{1} << 15;  // the least for a thread
  const int64_t block = cpu::unit_block(steps_.acc_bytes);
  const int64_t blocks = divide_up(steps_.hidden, block);
  const int64_t grain = divide_up(kElements * blocks, std::max<int64_t>(elements, 1));
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    f(begin * block, std::min(end * block, steps_.hidden));
  });
}

}  // namespace treadle
