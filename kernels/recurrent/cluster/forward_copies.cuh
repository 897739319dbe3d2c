// The copies that the forward cluster kernel makes between global and shared memory. It prefetches
// the input products [D, S, G, H] some steps ahead (cp.async, kDepth stages), and stores output and
// gates after they are computed. The copying threads are those of the copy warp or, without one,
// all threads of the block. Each of them has a ForwardCopies object.
#pragma once

#include "kernels/recurrent/cluster/cluster.cuh"

namespace treadle {

// `kFirstInput` is the first gate that has an input product.
template <class Layout, int kFirstInput>
struct ForwardCopies {
  const PersistentForward& args;
  const Group& group;
  const bool vector;
  const char* chunk16_from[Layout::kChunks16];  // products
  char* chunk16_to[Layout::kChunks16];          // gates, which overwrite products
  uint32_t chunk16_at[Layout::kChunks16];
  int chunk16_row[Layout::kChunks16], chunk16_left[Layout::kChunks16];
  char* quad_to[Layout::kQuads];  // output: four units of one row
  uint32_t quad_at[Layout::kQuads];
  int quad_row[Layout::kQuads], quad_left[Layout::kQuads];

  __device__ __forceinline__ ForwardCopies(const PersistentForward& args, const Group& group,
                                           uint32_t base, int first_unit, int stride, int thread)
      : args(args), group(group), vector(args.sizes.hidden % 8 == 0 && args.output_row % 4 == 0) {
    constexpr int units = Layout::kUnits, tiles = Layout::kTiles, kRows = Layout::kRows;
    const int64_t hidden = args.sizes.hidden, d = group.direction, first_row = group.rows.first;
    const int64_t all_rows = group.rows.start(static_cast<int>(args.sizes.steps));
#pragma unroll
    for (int i = 0; i < Layout::kChunks16; ++i) {
      const int e = thread + i * Layout::kCopying;
      const int chunk16 = e % (units / 8), r = e / (units / 8) % kRows, m = e / (units / 8) / kRows;
      const int64_t u = first_unit + chunk16 * 8;
      chunk16_left[i] = static_cast<int>(hidden - u);
      chunk16_row[i] = m < Layout::kGates && u < hidden ? r : kRows;
      chunk16_at[i] = base + Layout::kStages + (m * kRows + r) * Layout::kStageRow + chunk16 * 16;
      chunk16_from[i] = m < kFirstInput ? nullptr
                                        : static_cast<const char*>(args.products) +
                                              2 * (d * args.product_direction +
                                                   (first_row + r) * args.product_row +
                                                   m * args.product_gate + u);
      chunk16_to[i] = static_cast<char*>(args.gates) +
                      2 * (((d * all_rows + first_row + r) * Layout::kGates + m) * hidden + u);
    }
#pragma unroll
    for (int i = 0; i < Layout::kQuads; ++i) {
      const int e = thread + i * Layout::kCopying, quad = e % (units / 4), r = e / (units / 4);
      const int64_t u = first_unit + quad * 4;
      quad_left[i] = static_cast<int>(hidden - u);
      quad_row[i] = r < kRows && u < hidden ? r : kRows;
      quad_at[i] = base + Layout::kOutgoing + (quad / 4 * tiles + r / 8) * 32 * stride +
                   quad % 4 * 8 * stride + r % 8 * 8;
      quad_to[i] = static_cast<char*>(args.output) +
                   2 * ((first_row + r) * args.output_row + d * hidden + u);
    }
  }

  // Does not use group.forward_time(): the call would change the machine code.
  __device__ __forceinline__ int time(int s) const {
    return group.reverse == 0 ? s : static_cast<int>(args.sizes.steps) - 1 - s;
  }

  // Commits a group of copies even if there is nothing to copy, because wait_copies counts groups.
  __device__ __forceinline__ void fetch(int s) const {
    if (s < args.sizes.steps) {
      const int active = group.rows.active(time(s));
      const int64_t step = group.rows.start(time(s)) * static_cast<int>(args.product_row) * 2;
      const int stage = s % Layout::kDepth * Layout::kStageBytes;
#pragma unroll
      for (int i = 0; i < Layout::kChunks16; ++i) {
        if (kFirstInput > 0 && chunk16_from[i] == nullptr) continue;
        if (chunk16_row[i] < active)
          ptx::copy16_async(chunk16_at[i] + stage, chunk16_from[i] + step);
      }
    }
    ptx::commit_copies();
  }

  // Fills the first stages. Stage 0 has arrived after all copying threads have returned from this
  // function and passed a barrier.
  __device__ __forceinline__ void begin() const {
    for (int s = 0; s < Layout::kAhead; ++s) fetch(s);
    ptx::wait_copies<Layout::kAhead - 1>();
  }

  // Called before the step barrier of step s. Waits until the stage of step s + 1 has arrived.
  __device__ __forceinline__ void before() const { ptx::wait_copies<Layout::kAhead - 2>(); }

  // Called after the step barrier of step s: stores output and gates of step s, then refills a
  // stage that was last read two steps ago. `unsent` has a bit for each row whose output differs
  // from the h that was sent to other blocks.
  __device__ __forceinline__ void after(int s, uint32_t unsent) const {
    const int active = group.rows.active(time(s));
    const int64_t start = group.rows.start(time(s));
    const int64_t output_step = start * static_cast<int>(args.output_row) * 2;
#pragma unroll
    for (int i = 0; i < Layout::kQuads; ++i) {
      if (quad_row[i] >= active) continue;
      const int from = unsent >> quad_row[i] & 1 ? Layout::kUnsent - Layout::kOutgoing : 0;
      store_four(quad_to[i] + output_step,
                 ptx::load8(quad_at[i] + from + (s & 1) * Layout::kOutgoingBytes), quad_left[i],
                 vector);
    }
    if (args.gates != nullptr) {
      const int64_t step = start * (Layout::kGates * static_cast<int>(args.sizes.hidden)) * 2;
      const int stage = s % Layout::kDepth * Layout::kStageBytes;
#pragma unroll
      for (int i = 0; i < Layout::kChunks16; ++i) {
        if (chunk16_row[i] >= active) continue;
        store_eight(chunk16_to[i] + step, ptx::load16(chunk16_at[i] + stage), chunk16_left[i],
                    vector);
      }
    }
    fetch(s + Layout::kAhead);
  }
};

// Resets the items (unit, row) of a computing thread. `anew` is the word of step s (SharedMarks).
// This happens while the product of the step runs, so it delays neither the sending of h nor the
// beginning of the next step.
template <bool any, int items>
struct ForwardStarts {
  const GroupResets<any>& resets;
  int first_unit;
  const int (&unit)[items], (&row)[items];
  const uint32_t (&place)[items];

  // Resets c of rows that reset before this step. For rows that reset before the next step, writes
  // the h to which they reset to the outgoing buffer, which was last read two steps ago.
  __device__ __forceinline__ void begin(uint32_t anew, int s, uint32_t outgoing,
                                        float (&c)[items]) const {
    if constexpr (!any) return;
    const uint32_t now = anew & 0xffff, ahead = anew >> 16;
#pragma unroll
    for (int i = 0; i < items; ++i) {
      if (now >> row[i] & 1) c[i] = 0;
      if (ahead >> row[i] & 1) ptx::store2(outgoing + place[i], 0);
    }
    if (!resets.given() || anew == 0) return;
#pragma unroll
    for (int i = 0; i < items; ++i) {
      // The indices are hidden from the compiler. Otherwise it would compute addresses in every
      // step, or keep them in registers, although few steps need them.
      uint32_t p = s, r = row[i], u = first_unit + unit[i];
      keep(p), keep(r), keep(u);
      if (now >> row[i] & 1) c[i] = resets.c(resets.template time<false>(p), r, u);
      if (ahead >> row[i] & 1) {
        const int t = resets.template time<false>(p + 1);
        ptx::store2(outgoing + place[i], resets.template h<uint16_t>(t, r, u));
      }
    }
  }

  // Where h is stored: in the outgoing buffer or, if another h is sent, in a buffer that is copied
  // only to the output.
  template <class Layout>
  __device__ __forceinline__ uint32_t place_of(uint32_t anew, int i, uint32_t outgoing) const {
    if constexpr (!any) return 0;
    constexpr int kUnsent = Layout::kUnsent - Layout::kOutgoing;
    uint32_t to = outgoing + place[i] + (anew >> 16 >> row[i] & 1 ? kUnsent : 0);
    keep(to);  // otherwise the compiler computes it after h
    return to;
  }
};

}  // namespace treadle
