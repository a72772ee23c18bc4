#include "kernels/mhc/mega.h"
#include "kernels/mhc/op.h"
#include "kernels/norm/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {

namespace reference {

MixCoefficients mix_coefficients(const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale, const at::Tensor& base,
                                 double rms_eps, double hc_eps, int64_t iterations) {
  const int64_t tokens = streams.size(0), n = streams.size(1);
  const at::Tensor x = to_math(streams).reshape({tokens, n * streams.size(2)});
  const at::Tensor m = at::linear(x, fn) * at::rsqrt(x.square().mean(1, /*keepdim=*/true) + rms_eps);  // [tokens, (2 + n) n]
  const auto part = [&](int64_t first, int64_t count, int64_t which) {
    return m.narrow(1, first, count) * scale[which] + base.narrow(0, first, count);
  };
  at::Tensor comb = at::softmax(part(2 * n, n * n, 2).view({tokens, n, n}), -1) + hc_eps;
  comb = comb / (comb.sum(1, /*keepdim=*/true) + hc_eps);
  for (int64_t i = 1; i < iterations; ++i) {
    comb = comb / (comb.sum(2, true) + hc_eps);
    comb = comb / (comb.sum(1, true) + hc_eps);
  }
  return {at::sigmoid(part(0, n, 0)) + hc_eps, 2 * at::sigmoid(part(n, n, 1)), comb};
}

}  // namespace reference

at::Tensor collapse(const at::Tensor& streams, const at::Tensor& pre) {
  return at::bmm(pre.unsqueeze(1), to_math(streams)).squeeze(1).to(streams.scalar_type());
}

namespace {

at::Tensor composed_expand(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb) {
  const at::Tensor mixed = at::bmm(comb.transpose(1, 2), to_math(streams));  // [tokens, destination, d]
  return (post.unsqueeze(2) * to_math(y).unsqueeze(1) + mixed).to(streams.scalar_type());
}

MixIn composed_mix_in(const at::Tensor& streams, const at::Tensor& given, const MixParameters& p, Implementation how) {
  const auto coefficients = how == Implementation::kReference ? &reference::mix_coefficients : &mix_coefficients;
  return {coefficients(streams, p.fn, p.scale, p.base, p.rms_eps, p.hc_eps, p.iterations),
          rms_norm(collapse(streams, given), p.gain, p.rms_eps)};
}

}  // namespace

MixIn mix_in(const at::Tensor& streams, const at::Tensor& given, const MixParameters& parameters, Implementation how) {
  if (how == Implementation::kMega) return mhc::mega_mix_in(streams, given, parameters);
  return composed_mix_in(streams, given, parameters, how);
}
at::Tensor expand(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb,
                  Implementation how) {
  return how == Implementation::kMega ? mhc::mega_expand(y, streams, post, comb) : composed_expand(y, streams, post, comb);
}
Boundary boundary(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb,
                  const at::Tensor& given, const MixParameters& parameters, Implementation how) {
  if (how == Implementation::kMega) return mhc::mega_boundary(y, streams, post, comb, given, parameters);
  const at::Tensor made = composed_expand(y, streams, post, comb);
  return {made, composed_mix_in(made, given, parameters, how)};
}

std::vector<Candidate> mhc_candidates(at::ScalarType streams, bool on_cpu) {
  const std::string elsewhere = on_cpu ? "" : "it is made for CPUs";
  const bool known = streams == at::kFloat || streams == at::kDouble || streams == at::kBFloat16;
  return {{Implementation::kMega, known ? elsewhere : std::string("streams of ") + at::toString(streams)},
          {Implementation::kFused, elsewhere},
          {Implementation::kReference, ""}};
}

}  // namespace hyperparallel::kernels
