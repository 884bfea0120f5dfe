/* Standard normal numbers from a counter: an integer hash and the Box-Muller transform, in single precision.

   Pair i of the stream with keys (k0, k1, k2):
       y = mix(i + k0),  s = mix(y ^ k1),  t = mix(y ^ k2)
       u = (s mod 2^31 + 1/2) / 2^31,  v = t / 2^32 in [-1/2, 1/2)
       first = sqrt(-2 ln u) cos(2 pi v),  second = sqrt(-2 ln u) sin(2 pi v)

   The logarithm and the circular functions are polynomials (absolute error below 1e-6), so that a compiler can turn the
   loop into vector instructions. temperance/dynamics/noise.py has the same arithmetic in PyTorch. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return x;
}

static inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* ln u = e ln 2 + ln(1 + f), with 1 + f between sqrt(1/2) and sqrt(2) */
static inline float natural_log(float u) {
    uint32_t bits = as_bits(u) + (0x3F800000u - 0x3F3504F3u);
    float e = (float)((int32_t)(bits >> 23) - 127);
    float f = as_float((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    float p = 0.0853331304987428f;
    p = p * f - 0.14269258189243703f;
    p = p * f + 0.1497740128415435f;
    p = p * f - 0.16577992899340357f;
    p = p * f + 0.19955933358256733f;
    p = p * f - 0.25001352185386944f;
    p = p * f + 0.3333419328613587f;
    p = p * f - 0.4999999638212503f;
    p = p * f + 0.9999999741310671f;
    return e * 0.6931471805599453f + f * p;
}

typedef struct {
    uint32_t k0, k1, k2;
} keys_t;

static inline void normal_pair(int64_t i, keys_t keys, float *first, float *second) {
    uint32_t y = mix((uint32_t)i + keys.k0);
    uint32_t s = mix(y ^ keys.k1);
    uint32_t t = mix(y ^ keys.k2);
    float u = ((float)(int32_t)(s & 0x7FFFFFFFu) + 0.5f) * 4.656612873077393e-10f;
    float q = -2.0f * natural_log(u);
    float r = sqrtf(q > 0.0f ? q : 0.0f);
    float v = (float)(int32_t)t * 2.3283064365386963e-10f;
    float x = v * v;
    float c = -1.4529874920845032f;
    c = c * x + 7.800022165291011f;
    c = c * x - 26.404630603916303f;
    c = c * x + 60.24212492771494f;
    c = c * x - 85.45665775339239f;
    c = c * x + 64.9393890524762f;
    c = c * x - 19.739208743087502f;
    c = c * x + 0.999999999884617f;
    float d = -0.6207367777824402f;
    d = d * x + 3.781282164156437f;
    d = d * x - 15.086552631575614f;
    d = d * x + 42.057751863590966f;
    d = d * x - 76.70580003037628f;
    d = d * x + 81.60524741397006f;
    d = d * x - 41.34170221825741f;
    d = d * x + 6.283185307136348f;
    *first = r * c;
    *second = r * v * d;
}

/* Every kernel below works on pairs start..stop-1 of arrays whose two halves are given apart, so that pair i is number i
   of both. The loops are left to the compiler to turn into vector instructions, which it does for a plain loop and not
   for one that is also shared among threads: threads take consecutive parts instead. What a pair is does not depend on
   them. */
#define IN_PARTS(call)                                                                                                 \
    if (threads <= 1) {                                                                                                \
        int64_t low = start, high = stop;                                                                              \
        call;                                                                                                          \
    } else {                                                                                                           \
        _Pragma("omp parallel for schedule(static) num_threads(threads)") for (int part = 0; part < threads; part++) {  \
            int64_t low = start + (stop - start) * part / threads;                                                     \
            int64_t high = start + (stop - start) * (part + 1) / threads;                                              \
            call;                                                                                                      \
        }                                                                                                              \
    }

#define RANGE static __attribute__((noinline)) void

RANGE fill(float *restrict first, float *restrict second, int64_t low, int64_t high, keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        normal_pair(i, keys, first + i, second + i);
    }
}

/* The first of pair i goes to first[i], the second to second[i]. */
void temperance_fill_normal(float *first, float *second, int64_t start, int64_t stop, int threads, uint32_t k0,
                            uint32_t k1, uint32_t k2) {
    keys_t keys = {k0, k1, k2};
    IN_PARTS(fill(first, second, low, high, keys))
}

RANGE euler(float *restrict theta0, float *restrict theta1, float *restrict v0, float *restrict v1,
            const float *restrict g0, const float *restrict g1, int64_t low, int64_t high, keys_t keys, float decay,
            float force, float spread, float h) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        float first = v0[i] * decay - force * g0[i] + spread * a;
        float second = v1[i] * decay - force * g1[i] + spread * b;
        v0[i] = first;
        v1[i] = second;
        theta0[i] += h * first;
        theta1[i] += h * second;
    }
}

/* One move of symplectic Euler: v <- decay v - force g + spread xi,  theta <- theta + h v */
void temperance_symplectic_euler(float *theta0, float *theta1, float *v0, float *v1, const float *g0, const float *g1,
                                 int64_t start, int64_t stop, int threads, uint32_t k0, uint32_t k1, uint32_t k2,
                                 float decay, float force, float spread, float h) {
    keys_t keys = {k0, k1, k2};
    IN_PARTS(euler(theta0, theta1, v0, v1, g0, g1, low, high, keys, decay, force, spread, h))
}

/* e^x, for -87 < x < 88, to a few units in the last place: 2^n times a polynomial on half an octave */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = x * 1.4426950408889634f + 12582912.0f; /* rounds to an integer */
    n -= 12582912.0f;
    float r = x - n * 0.693359375f;
    r += n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * as_float((uint32_t)((int32_t)n + 127) << 23);
}

RANGE draw_log(float *restrict theta0, float *restrict theta1, const float *restrict mean0,
               const float *restrict mean1, const float *restrict log0, const float *restrict log1, int64_t low,
               int64_t high, keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        theta0[i] = mean0[i] + exponential(log0[i]) * a;
        theta1[i] = mean1[i] + exponential(log1[i]) * b;
    }
}

/* A draw of independent normals: theta = mean + exp(log_scale) xi */
void temperance_draw_by_log_scale(float *theta, const float *mean, const float *log_scale, int64_t half, int64_t stop,
                                  int threads, uint32_t k0, uint32_t k1, uint32_t k2) {
    keys_t keys = {k0, k1, k2};
    int64_t start = 0;
    IN_PARTS(draw_log(theta, theta + half, mean, mean + half, log_scale, log_scale + half, low, high, keys))
}

/* s (g xi + 2 s v) - e with s = exp(log_scale) */
static inline float by_log_scale(float g, float log_scale, float xi, float v, float e) {
    float s = exponential(log_scale);
    return s * (g * xi + 2.0f * s * v) - e;
}

RANGE pull(float *restrict out0, float *restrict out1, const float *restrict g0, const float *restrict g1,
           const float *restrict log0, const float *restrict log1, float v, float e, int64_t low, int64_t high,
           keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        out0[i] = by_log_scale(g0[i], log0[i], a, v, e);
        out1[i] = by_log_scale(g1[i], log1[i], b, v, e);
    }
}

RANGE pull_each(float *restrict out0, float *restrict out1, const float *restrict g0, const float *restrict g1,
                const float *restrict log0, const float *restrict log1, const float *restrict v0,
                const float *restrict v1, float v, float e, int64_t low, int64_t high, keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        out0[i] = by_log_scale(g0[i], log0[i], a, v * v0[i], e);
        out1[i] = by_log_scale(g1[i], log1[i], b, v * v1[i], e);
    }
}

/* The gradient of such a draw in the logs of the scales; v is `variance`, or that times `variances` */
void temperance_pull_to_log_scale(float *out, const float *g, const float *log_scale, const float *variances,
                                  float variance, float entropy, int64_t half, int64_t stop, int threads, uint32_t k0,
                                  uint32_t k1, uint32_t k2) {
    keys_t keys = {k0, k1, k2};
    int64_t start = 0;
    const float *log1 = log_scale + half;
    if (variances) {
        IN_PARTS(pull_each(out, out + half, g, g + half, log_scale, log1, variances, variances + half, variance, entropy,
                           low, high, keys))
    } else {
        IN_PARTS(pull(out, out + half, g, g + half, log_scale, log1, variance, entropy, low, high, keys))
    }
}

RANGE draw_root(float *restrict theta0, float *restrict theta1, const float *restrict mean0,
                const float *restrict mean1, const float *restrict h0, const float *restrict h1, float d, float c,
                int64_t low, int64_t high, keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        theta0[i] = mean0[i] + a / sqrtf(c * (h0[i] + d));
        theta1[i] = mean1[i] + b / sqrtf(c * (h1[i] + d));
    }
}

RANGE draw_root_each(float *restrict theta0, float *restrict theta1, const float *restrict mean0,
                     const float *restrict mean1, const float *restrict h0, const float *restrict h1,
                     const float *restrict d0, const float *restrict d1, float d, float c, int64_t low, int64_t high,
                     keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        theta0[i] = mean0[i] + a / sqrtf(c * (h0[i] + d * d0[i]));
        theta1[i] = mean1[i] + b / sqrtf(c * (h1[i] + d * d1[i]));
    }
}

/* A draw theta = mean + xi / sqrt(c (h + d)); d is `delta`, or that times `deltas` */
void temperance_draw_by_precision(float *theta, const float *mean, const float *h, const float *deltas, float delta,
                                  float c, int64_t half, int64_t stop, int threads, uint32_t k0, uint32_t k1,
                                  uint32_t k2) {
    keys_t keys = {k0, k1, k2};
    int64_t start = 0;
    if (deltas) {
        IN_PARTS(draw_root_each(theta, theta + half, mean, mean + half, h, h + half, deltas, deltas + half, delta, c,
                                low, high, keys))
    } else {
        IN_PARTS(draw_root(theta, theta + half, mean, mean + half, h, h + half, delta, c, low, high, keys))
    }
}

typedef struct {
    float c, first, second, correction, rate, initial;
} ivon_t;

/* One step of IVON for one number, see temperance/inference/ivon.py */
static inline void ivon_one(float *m, float *h, float *momentum, float g, float xi, float d, ivon_t s) {
    float total = *h + d;
    float change = g * xi * sqrtf(s.c * total) - *h;
    float share = 1.0f - s.second;
    float average = s.first * *momentum + (1.0f - s.first) * g;
    float curvature = *h + share * change + 0.5f * share * share * change * change / total;
    *momentum = average;
    *h = curvature;
    *m -= s.rate * (s.initial + d) * (average * s.correction + d * *m) / (curvature + d);
}

RANGE ivon(float *restrict m0, float *restrict m1, float *restrict h0, float *restrict h1, float *restrict v0,
           float *restrict v1, const float *restrict g0, const float *restrict g1, float d, ivon_t s, int64_t low,
           int64_t high, keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        ivon_one(m0 + i, h0 + i, v0 + i, g0[i], a, d, s);
        ivon_one(m1 + i, h1 + i, v1 + i, g1[i], b, d, s);
    }
}

RANGE ivon_each(float *restrict m0, float *restrict m1, float *restrict h0, float *restrict h1, float *restrict v0,
                float *restrict v1, const float *restrict g0, const float *restrict g1, const float *restrict d0,
                const float *restrict d1, float d, ivon_t s, int64_t low, int64_t high, keys_t keys) {
    for (int64_t i = low; i < high; i++) {
        float a, b;
        normal_pair(i, keys, &a, &b);
        ivon_one(m0 + i, h0 + i, v0 + i, g0[i], a, d * d0[i], s);
        ivon_one(m1 + i, h1 + i, v1 + i, g1[i], b, d * d1[i], s);
    }
}

void temperance_ivon(float *m, float *h, float *momentum, const float *g, const float *deltas, float delta, float c,
                     float first, float second, float correction, float rate, float initial, int64_t half, int64_t stop,
                     int threads, uint32_t k0, uint32_t k1, uint32_t k2) {
    keys_t keys = {k0, k1, k2};
    ivon_t s = {c, first, second, correction, rate, initial};
    int64_t start = 0;
    float *m1 = m + half, *h1 = h + half, *v1 = momentum + half;
    if (deltas) {
        IN_PARTS(ivon_each(m, m1, h, h1, momentum, v1, g, g + half, deltas, deltas + half, delta, s, low, high, keys))
    } else {
        IN_PARTS(ivon(m, m1, h, h1, momentum, v1, g, g + half, delta, s, low, high, keys))
    }
}
