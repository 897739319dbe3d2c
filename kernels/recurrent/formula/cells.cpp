// The process's registry of cells that formulas define.
#include "kernels/recurrent/formula/cells.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace treadle {
namespace {

struct FormulaCell {
  std::string name;
  CellKind kind;
  CellInfo info;
  bool affine;
  FormulaPrograms programs;
};

// Cells are never deleted, so references to them stay valid after the mutex is unlocked.
constexpr int kMost = 4096;
FormulaCell* cells[kMost];
std::atomic<int> count{0};
std::mutex mutex;
std::atomic<FormulaCompiler> gpu_compiler{nullptr};
std::atomic<FormulaRowsCompiler> cpu_compiler{nullptr};

const FormulaCell& formula_cell(CellKind cell) {
  return *cells[static_cast<int>(cell) - static_cast<int>(CellKind::kFormula)];
}

// Must have the same cases as visit_formula_gates() of kind.h.
bool takes_gates(int gates, int input_gates, int state_gates) {
  if (gates == input_gates && gates == state_gates) return gates >= 1 && gates <= 4;
  return (gates == 3 || gates == 4) && input_gates == gates - 1 && state_gates == gates - 1;
}

}  // namespace

const CellInfo& formula_info(CellKind cell) { return formula_cell(cell).info; }

const CellKind* formula_named(std::string_view name) {
  const int known = count.load(std::memory_order_acquire);
  for (int i = 0; i < known; ++i) {
    if (cells[i]->name == name) return &cells[i]->kind;
  }
  return nullptr;
}

bool is_affine(CellKind cell) { return !is_formula(cell) || formula_cell(cell).affine; }

const FormulaPrograms& formula_programs(CellKind cell) { return formula_cell(cell).programs; }

const char* add_formula(const char* name, int gates, int input_gates, int state_gates, int c_parts,
                        int affine, const char* forward, const char* backward,
                        const char* forward_tangent, const char* backward_tangent) {
  if (!takes_gates(gates, input_gates, state_gates)) {
    return "gates must be 1 to 4, with input_gates and state_gates equal to gates; or 3 or 4, with "
           "input_gates and state_gates equal to gates - 1";
  }
  if (c_parts < 0 || c_parts > kMostCParts) return "c_parts (states besides h) must be 0 to 4";
  const std::lock_guard<std::mutex> lock(mutex);
  if (cell_named(name) != nullptr) return "name must be new, got that of a registered cell";
  const int index = count.load(std::memory_order_relaxed);
  if (index == kMost) return "a process must register at most 4096 cells, got more";
  auto* const cell =
      new FormulaCell{name,
                      static_cast<CellKind>(static_cast<int>(CellKind::kFormula) + index),
                      {},
                      affine != 0 && c_parts <= 1,
                      {forward, backward, forward_tangent, backward_tangent}};
  cell->info = {cell->name.c_str(),
                gates,
                gates - input_gates,
                input_gates,
                0,
                state_gates,
                0,
                c_parts > 0,
                std::max(c_parts, 1),
                true,
                true};
  cells[index] = cell;
  count.store(index + 1, std::memory_order_release);
  return nullptr;
}

void set_formula_compilers(FormulaCompiler gpu, FormulaRowsCompiler cpu) {
  gpu_compiler.store(gpu);
  cpu_compiler.store(cpu);
}

FormulaCompiler formula_compiler() { return gpu_compiler.load(); }

const cpu::RowsFunctions* formula_rows(CellKind cell, Dtype dtype) {
  static std::map<std::pair<CellKind, Dtype>, const cpu::RowsFunctions*> known;
  static std::mutex mutex;
  const std::pair<CellKind, Dtype> key{cell, dtype};
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
  }
  const FormulaRowsCompiler compile = cpu_compiler.load();
  if (compile == nullptr) return nullptr;
  // Do not hold the mutex during compile(): it acquires Python's GIL, and the thread that holds the
  // GIL may be waiting for this mutex.
  const cpu::RowsFunctions* made = nullptr;
  compile(cell_info(cell).name, static_cast<int>(dtype), &made);
  const std::lock_guard<std::mutex> lock(mutex);
  return known.emplace(key, made).first->second;
}

}  // namespace treadle
