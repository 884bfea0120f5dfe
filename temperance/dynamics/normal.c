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

/* Pairs start..stop-1: the first of pair i goes to first[i], the second to second[i]. What a pair is does not depend on
   the threads. */
void temperance_fill_normal(float *restrict first, float *restrict second, int64_t start, int64_t stop, int threads,
                            uint32_t k0, uint32_t k1, uint32_t k2) {
    keys_t keys = {k0, k1, k2};
#pragma omp parallel for simd schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = start; i < stop; i++) {
        normal_pair(i, keys, first + i, second + i);
    }
}

/* One move of symplectic Euler for pairs start..stop-1, the arrays' second halves given apart:
       v <- decay v - force g + spread xi,  theta <- theta + h v */
void temperance_symplectic_euler(float *restrict theta0, float *restrict theta1, float *restrict v0,
                                 float *restrict v1, const float *restrict g0, const float *restrict g1, int64_t start,
                                 int64_t stop, int threads, uint32_t k0, uint32_t k1, uint32_t k2, float decay, float force,
                                 float spread, float h) {
    keys_t keys = {k0, k1, k2};
#pragma omp parallel for simd schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = start; i < stop; i++) {
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
