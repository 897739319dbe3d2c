// Evaluates the program of a formula (kernels/recurrent/formula/cells.h) on tensors.
#pragma once

#include <vector>

#include "kernels/recurrent/formula/cells.h"
#include "recurrent/layer/formulas.h"

namespace treadle {

class FormulaProgram {
 public:
  explicit FormulaProgram(const std::string& text);

  // All inputs are defined and have the same shape and dtype, which the results also have.
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs) const;

 private:
  struct Line {
    std::string op;
    std::vector<size_t> args;
    double number = 0;
  };
  std::vector<Line> lines_;
  std::vector<size_t> results_;
};

// The programs of a registered cell. The reference that formula_evaluators() returns stays valid.
struct FormulaEvaluators {
  FormulaProgram forward, backward, forward_tangent, backward_tangent;
};
const FormulaEvaluators& formula_evaluators(CellKind cell);

}  // namespace treadle
