// Calls every op of treadle from C++ and trains a small recurrent net with C++ autograd.
//
// The net reads a sequence of random numbers, one per step, and learns to output their mean.
#include <torch/torch.h>
#include <treadle/ops.h>

#include <cmath>
#include <cstdio>
#include <vector>

using torch::Tensor;

namespace {

constexpr int64_t kBatch = 64, kSteps = 8, kHidden = 16, kTrainingSteps = 100;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(1);
}

void call_every_op(torch::Device device) {
  const Tensor a = torch::randn({4, 1, 5}, device), b = torch::randn({3, 5}, device);
  require(torch::equal(treadle::vector_add(a, b), a + b), "vector_add");
  require(torch::allclose(treadle::vector_add(a, 2, 0.5), a + 1), "vector_add of a number");
  require(torch::equal(treadle::scale(a, 3), a * 3), "scale");
  require(torch::allclose(treadle::sine(a), a.sin()), "sine");
  require(torch::allclose(treadle::sine_backward(b, b), b * b.cos()), "sine_backward");
  require(torch::allclose(treadle::cosine(a), a.cos()), "cosine");
  require(torch::allclose(treadle::cosine_backward(b, b), -b * b.sin()), "cosine_backward");
  const Tensor alpha = torch::rand({5}, device) + 0.5, beta = alpha + 1;
  const Tensor snake = b + (alpha * b).sin().square() / beta;
  require(torch::allclose(treadle::snake(b, alpha, beta), snake, 1e-5, 1e-6), "snake");
  const Tensor weight = torch::randn({7, 5}, device), bias = torch::randn({7}, device);
  require(torch::allclose(treadle::sine_linear(a, weight, bias, 2),
                          (2 * torch::linear(a, weight, bias)).sin(), 1e-4, 1e-5),
          "sine_linear");
  // The input is a value v and its derivative v' with respect to one coordinate. The layer computes
  // z = W v + b and its derivative W v', and from these the sine and its derivative.
  const Tensor jet = treadle::sine_linear_jet(torch::stack({b, b + 1}), weight, bias, 2, 1);
  const Tensor z = torch::linear(b, weight, bias), slope = torch::linear(b + 1, weight);
  require(
      torch::allclose(jet, torch::stack({(2 * z).sin(), 2 * (2 * z).cos() * slope}), 1e-4, 1e-4),
      "sine_linear_jet");

  Tensor out = torch::empty({0}, device), same = b.clone();
  require(torch::equal(treadle::scale_out(out, b, 2), b * 2), "scale_out");
  require(torch::equal(treadle::vector_add_out(out, b, b), b + b), "vector_add_out");
  require(torch::allclose(treadle::sine_out(out, b), b.sin()), "sine_out");
  require(torch::allclose(treadle::cosine_out(out, b), b.cos()), "cosine_out");
  require(torch::allclose(treadle::snake_out(out, b, alpha, beta), snake, 1e-5, 1e-6), "snake_out");
  Tensor moved = b.clone();
  require(torch::allclose(treadle::snake_(moved, alpha, beta), snake, 1e-5, 1e-6), "snake_");
  treadle::scale_(same, 2);
  treadle::vector_add_(same, b);
  treadle::vector_add_(same, 1);
  treadle::sine_(same);
  treadle::cosine_(same);
  require(torch::allclose(same, (b * 3 + 1).sin().cos(), 1e-5, 1e-6), "the in-place forms");

  try {
    treadle::scale(torch::ones({2}, torch::kComplexFloat).to(device), 2);
    require(false, "a complex tensor must raise");
  } catch (const c10::Error& error) {
    std::printf("a bad argument raises: %s\n", error.what_without_backtrace());
  }
}

// Compares both overloads of a bidirectional lltm with loops over lltm_cell, with gradients for the
// first overload.
void call_layers(torch::Device device) {
  constexpr int64_t kRows = 3, kFeatures = 5, kUnits = 4;
  const auto options = torch::TensorOptions(device).dtype(torch::kDouble);
  const Tensor x = torch::randn({kSteps, kRows, kFeatures}, options).requires_grad_();
  const Tensor h0 = torch::randn({2, kRows, kUnits}, options);
  const Tensor c0 = torch::randn({2, kRows, kUnits}, options);
  std::vector<Tensor> params;  // for each direction: weight_ih, weight_hh, bias
  for (int direction = 0; direction < 2; ++direction) {
    for (const int64_t columns : {kFeatures, kUnits}) {
      params.push_back(torch::randn({3 * kUnits, columns}, options).requires_grad_());
    }
    params.push_back(torch::randn({3 * kUnits}, options).requires_grad_());
  }
  std::vector<Tensor> all_h, last_h, last_c;
  for (int direction = 0; direction < 2; ++direction) {
    const Tensor* own = &params[3 * direction];
    const Tensor weights = torch::cat({own[1], own[0]}, 1);
    Tensor h = h0[direction], c = c0[direction];
    std::vector<Tensor> steps(kSteps);
    for (int64_t s = 0; s < kSteps; ++s) {
      const int64_t t = direction == 0 ? s : kSteps - 1 - s;
      std::tie(h, c) = treadle::lltm_cell(x[t], weights, own[2], h, c);
      steps[t] = h;
    }
    all_h.push_back(torch::stack(steps));
    last_h.push_back(h);
    last_c.push_back(c);
  }
  const Tensor expected = torch::cat(all_h, 2);

  const auto [output, h_n, c_n] =
      treadle::lltm(x, {h0, c0}, params, /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0.0,
                    /*train=*/true, /*bidirectional=*/true, /*batch_first=*/false);
  require(torch::allclose(output, expected), "lltm");
  require(torch::allclose(h_n, torch::stack(last_h)), "lltm's h_n");
  require(torch::allclose(c_n, torch::stack(last_c)), "lltm's c_n");
  std::vector<Tensor> leaves = params;
  leaves.push_back(x);
  const auto ours = torch::autograd::grad({output.sin().sum() + c_n.sum()}, leaves);
  const auto theirs =
      torch::autograd::grad({expected.sin().sum() + torch::stack(last_c).sum()}, leaves);
  for (size_t i = 0; i < ours.size(); ++i) {
    require(torch::allclose(ours[i], theirs[i]), "lltm's gradients");
  }

  // The same sequences as a packed batch, in which all rows have the same length.
  const Tensor sizes = torch::full({kSteps}, kRows, torch::kLong);
  const auto packed =
      treadle::lltm(x.flatten(0, 1), sizes, {h0, c0}, params, /*has_biases=*/true,
                    /*num_layers=*/1, /*dropout=*/0.0, /*train=*/false, /*bidirectional=*/true,
                    /*recompute=*/true);
  require(torch::allclose(std::get<0>(packed), output.flatten(0, 1)), "lltm of a packed batch");
  require(torch::allclose(std::get<2>(packed), c_n), "lltm's c_n of a packed batch");
}

// Compares lstm, gru and the RNNs with torch's own, for one layer in one direction.
void call_torchs_layers(torch::Device device) {
  constexpr int64_t kRows = 3, kFeatures = 5, kUnits = 4;
  const auto options = torch::TensorOptions(device).dtype(torch::kDouble);
  const Tensor x = torch::randn({kSteps, kRows, kFeatures}, options);
  const Tensor h0 = torch::randn({1, kRows, kUnits}, options);
  const auto params = [&](int64_t gates) {
    return std::vector<Tensor>{torch::randn({gates * kUnits, kFeatures}, options),
                               torch::randn({gates * kUnits, kUnits}, options),
                               torch::randn({gates * kUnits}, options),
                               torch::randn({gates * kUnits}, options)};
  };
  const auto of_lstm = params(4), of_gru = params(3);
  const auto ours = treadle::lstm(x, {h0, h0}, of_lstm, true, 1, 0.0, false, false, false);
  const auto theirs = torch::lstm(x, {h0, h0}, of_lstm, true, 1, 0.0, false, false, false);
  require(torch::allclose(std::get<0>(ours), std::get<0>(theirs)), "lstm");
  require(torch::allclose(std::get<2>(ours), std::get<2>(theirs)), "lstm's c_n");
  const auto [output, h_n] = treadle::gru(x, h0, of_gru, true, 1, 0.0, false, false, false);
  const auto expected = torch::gru(x, h0, of_gru, true, 1, 0.0, false, false, false);
  require(torch::allclose(output, std::get<0>(expected)), "gru");
  require(torch::allclose(h_n, std::get<1>(expected)), "gru's h_n");
  const auto of_rnn = params(1);
  const auto with_tanh = treadle::rnn_tanh(x, h0, of_rnn, true, 1, 0.0, false, false, false);
  const auto torchs_tanh = torch::rnn_tanh(x, h0, of_rnn, true, 1, 0.0, false, false, false);
  require(torch::allclose(std::get<0>(with_tanh), std::get<0>(torchs_tanh)), "rnn_tanh");
  const auto with_relu = treadle::rnn_relu(x, h0, of_rnn, true, 1, 0.0, false, false, false);
  const auto torchs_relu = torch::rnn_relu(x, h0, of_rnn, true, 1, 0.0, false, false, false);
  require(torch::allclose(std::get<0>(with_relu), std::get<0>(torchs_relu)), "rnn_relu");
}

struct Net : torch::nn::Module {
  Net() : head(register_module("head", torch::nn::Linear(kHidden, 1))) {
    const double bound = 1 / std::sqrt(static_cast<double>(kHidden));
    weights = register_parameter("weights",
                                 torch::empty({3 * kHidden, kHidden + 1}).uniform_(-bound, bound));
    bias = register_parameter("bias", torch::zeros({3 * kHidden}));
  }

  // numbers [B, T] -> [B]
  Tensor forward(const Tensor& numbers) {
    Tensor h = torch::zeros({numbers.size(0), kHidden}, numbers.options());
    Tensor cell = torch::zeros_like(h);
    for (int64_t t = 0; t < numbers.size(1); ++t) {
      std::tie(h, cell) = treadle::lltm_cell(numbers.slice(1, t, t + 1), weights, bias, h, cell);
    }
    return head->forward(h).squeeze(1);
  }

  torch::nn::Linear head;
  Tensor weights, bias;
};

// Returns the loss before and after training.
std::pair<double, double> train(torch::Device device) {
  Net net;
  net.to(device);
  torch::optim::Adam optimizer(net.parameters(), torch::optim::AdamOptions(0.02));
  double first = 0, last = 0;
  for (int64_t step = 0; step < kTrainingSteps; ++step) {
    const Tensor numbers = torch::rand({kBatch, kSteps}, device);
    const Tensor loss = torch::mse_loss(net.forward(numbers), numbers.mean(1));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  return {first, last};
}

}  // namespace

int main() {
  torch::manual_seed(0);
  std::vector<torch::Device> devices = {torch::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(torch::kCUDA);
  for (const auto device : devices) {
    call_every_op(device);
    call_layers(device);
    call_torchs_layers(device);
    const auto [first, last] = train(device);
    std::printf("%s: every op is right; loss %.4f, after %d steps of training %.4f\n",
                device.str().c_str(), first, static_cast<int>(kTrainingSteps), last);
    require(last < 0.1 * first, "training must bring the loss to a tenth");
  }
}
