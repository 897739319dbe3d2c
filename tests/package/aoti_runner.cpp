// Compares an AOTInductor package with the ops that it was compiled from, without Python.
// test_export.py builds this program and runs it with the package's path and a device.
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <treadle/ops.h>

#include <cstdio>

int main(int, char** argv) {
  const at::Device device(argv[2]);
  torch::inductor::AOTIModelPackageLoader package(argv[1]);
  for (const int64_t batch : {2, 5, 7}) {
    const at::Tensor x = at::randn({batch, 3}, device), h = at::randn({batch, 4}, device);
    const at::Tensor weights = at::randn({12, 7}, device), bias = at::randn({12}, device);
    const auto [new_h, new_cell] = treadle::lltm_cell(x, weights, bias, h, h);
    const at::Tensor expected = treadle::scale(
        treadle::cosine(treadle::sine(treadle::vector_add(new_h, new_cell, 0.5))), 3);
    const auto results = package.run({x, weights, bias, h});
    if (results.size() != 1 || !at::allclose(results[0], expected, 1e-6, 1e-6)) {
      std::fprintf(stderr, "the package computes something else for a batch of %ld\n", (long)batch);
      return 1;
    }
  }
  std::puts("the package computes what the ops compute");
}
