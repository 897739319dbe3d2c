// Torch headers that most files include. A build parses them once (tools/native/graph.py), which
// takes 3 to 10 seconds. No file relies on this header: each file includes what it uses.
#include <ATen/Functions.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>
