/* A doubling of the no-U-turn sampler: 2^depth leapfrog steps from one end of a trajectory, or until a balanced half of
   them turns or the energy runs away. The same walk as that of temperance/inference/nuts.py, where it is explained.
   Included by mlp.c, once for each precision. */

#ifndef LARGEST_GAIN
#define LARGEST_GAIN 1000.0
enum { WALKING, TURNED, DIVERGED };

static inline double log_add(double a, double b) {
    double high = a > b ? a : b, low = a > b ? b : a;
    return low == -INFINITY ? high : high + log1p(exp(low - high));
}
#endif

/* Whether a stretch with these end momenta, and this sum of momenta less `before`, has begun to turn. */
static __attribute__((noinline)) int N(turning)(const REAL *left, const REAL *right, const REAL *sum,
                                                const REAL *before, const REAL *inverse_mass, int64_t size) {
    REAL one[8] = {0}, two[8] = {0};
    int64_t j = 0;
    for (; j + 8 <= size; j += 8) {
        for (int k = 0; k < 8; k++) {
            REAL l = left[j + k], r = right[j + k];
            REAL ahead = inverse_mass[j + k] * (sum[j + k] - before[j + k] - (REAL)0.5 * (l + r));
            one[k] += l * ahead;
            two[k] += r * ahead;
        }
    }
    double first = 0, second = 0;
    for (int k = 0; k < 8; k++) {
        first += one[k];
        second += two[k];
    }
    for (; j < size; j++) {
        REAL ahead = inverse_mass[j] * (sum[j] - before[j] - (REAL)0.5 * (left[j] + right[j]));
        first += left[j] * ahead;
        second += right[j] * ahead;
    }
    return first <= 0 || second <= 0;
}

typedef struct {
    REAL *theta, *p, *grad;                /* the end that grows */
    REAL *chosen, *chosen_grad, *sum;      /* a leaf by its weight, and the sum of momenta */
    REAL *halves;                          /* depth pairs of vectors: where balanced halves begin */
    const REAL *inverse_mass;
    const double *luck;
    double step, inverse_temperature, start;
    double energy, weight, chances;
    int64_t leapfrogs, end;
} N(stretch_t);

static void N(stretch)(const plan_t *plan, N(stretch_t) *s, int64_t depth, REAL *scratch) {
    int64_t P = plan->parameters, closed;
    size_t bytes = (size_t)P * sizeof(REAL);
    memset(s->sum, 0, bytes);
    s->weight = -INFINITY;
    s->energy = NAN;
    s->chances = 0;
    s->leapfrogs = 0;
    s->end = WALKING;
    for (int64_t leaf = 0; leaf < (int64_t)1 << depth; leaf++) {
        double kinetic, energy = N(leap)(plan, s->theta, s->p, s->grad, s->inverse_mass, s->step,
                                         s->inverse_temperature, 1, &kinetic, scratch);
        double gain = s->inverse_temperature * energy + kinetic - s->start;
        s->leapfrogs++;
        if (!(gain <= LARGEST_GAIN)) {
            s->end = DIVERGED;
            return;
        }
        s->chances += gain > 0 ? exp(-gain) : 1.0;
        s->weight = log_add(s->weight, -gain);
        if (log(s->luck[leaf]) < -gain - s->weight || leaf == 0) {
            memcpy(s->chosen, s->theta, bytes);
            memcpy(s->chosen_grad, s->grad, bytes);
            s->energy = energy;
        }
        N(add_scaled)(s->sum, s->p, 1, P);
        int64_t place = __builtin_popcountll((unsigned long long)leaf >> 1);
        if (leaf % 2 == 0) {
            REAL *first = s->halves + 2 * place * P, *before = first + P;
            memcpy(first, s->p, bytes);
            for (int64_t j = 0; j < P; j++) before[j] = s->sum[j] - s->p[j];
            continue;
        }
        closed = __builtin_ctzll(~(unsigned long long)leaf);
        for (int64_t k = place; k > place - closed; k--) {
            REAL *first = s->halves + 2 * k * P;
            if (N(turning)(first, s->p, s->sum, first + P, s->inverse_mass, P)) {
                s->end = TURNED;
                return;
            }
        }
    }
}

void N(temperance_mlp_stretch)(const plan_t *plan, REAL *theta, REAL *p, REAL *grad, REAL *chosen, REAL *chosen_grad,
                               REAL *sum, REAL *halves, const REAL *inverse_mass, const double *given, double *told,
                               const double *luck, int64_t luck_stride, int64_t depth, int64_t chains, int threads) {
    /* given: step, 1/T, H at the start, of each chain; told: energy, weight, chances, leapfrogs, end */
    int64_t slots = 2 * (depth < 1 ? 1 : depth);
#define STRETCH                                                                                                        \
    {                                                                                                                  \
        int64_t at = c * P;                                                                                            \
        const double *g = given + 3 * c;                                                                               \
        N(stretch_t) s = {theta + at,        p + at,           grad + at,           chosen + at, chosen_grad + at,     \
                          sum + at,          halves + at * slots, inverse_mass + at, luck + c * luck_stride,            \
                          g[0],              g[1],             g[2],                0,           0,                    \
                          0,                 0,                0};                                                     \
        N(stretch)(plan, &s, depth, scratch);                                                                          \
        double *t = told + 5 * c;                                                                                      \
        t[0] = s.energy, t[1] = s.weight, t[2] = s.chances, t[3] = (double)s.leapfrogs, t[4] = (double)s.end;          \
    }
    FOR_CHAINS(STRETCH)
#undef STRETCH
}
