/* Chains of parameters that walk along the slope of an energy, each for itself: leapfrog steps, and the trajectories
   of nuts.c and microcanonical.c. Included, once for each precision REAL, by a file that has

       N(chain)(plan, theta, grad, scratch)    U(theta), and its gradient into grad unless that is null
       plan_t                                  with parameters, scratch and scratch_size (numbers a thread)
       flush_subnormals, restore_subnormals    around the work of a thread */

/* v <- v + scale g */
LOOP N(add_scaled)(REAL *restrict v, const REAL *restrict g, REAL scale, int64_t size) {
    for (int64_t j = 0; j < size; j++) v[j] += scale * g[j];
}

LOOP N(drift)(REAL *restrict theta, const REAL *restrict p, const REAL *restrict inverse_mass, REAL h, int64_t size) {
    for (int64_t j = 0; j < size; j++) theta[j] += h * inverse_mass[j] * p[j];
}

static __attribute__((noinline)) double N(kinetic)(const REAL *p, const REAL *inverse_mass, int64_t size) {
    double total[4] = {0, 0, 0, 0};
    int64_t j = 0;
    for (; j + 4 <= size; j += 4) {
        for (int k = 0; k < 4; k++) total[k] += (double)p[j + k] * p[j + k] * inverse_mass[j + k];
    }
    for (; j < size; j++) total[0] += (double)p[j] * p[j] * inverse_mass[j];
    return 0.5 * ((total[0] + total[1]) + (total[2] + total[3]));
}

static double N(leap)(const plan_t *plan, REAL *theta, REAL *p, REAL *grad, const REAL *inverse_mass, double step,
                      double inverse_temperature, int64_t steps, double *kinetic, REAL *scratch) {
    int64_t P = plan->parameters;
    double energy = 0, kick = -step * inverse_temperature;
    N(add_scaled)(p, grad, (REAL)(0.5 * kick), P);
    for (int64_t s = 0; s < steps; s++) {
        N(drift)(theta, p, inverse_mass, (REAL)step, P);
        energy = N(chain)(plan, theta, grad, scratch);
        N(add_scaled)(p, grad, (REAL)(s + 1 < steps ? kick : 0.5 * kick), P);
    }
    *kinetic = N(kinetic)(p, inverse_mass, P);
    return energy;
}

#ifdef _OPENMP
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif
#define FOR_CHAINS(call)                                                                                               \
    int64_t P = plan->parameters;                                                                                      \
    if (threads > chains) threads = (int)chains;                                                                       \
    if (threads <= 1) {                                                                                                \
        REAL *scratch = plan->scratch;                                                                                 \
        unsigned before = flush_subnormals();                                                                          \
        for (int64_t c = 0; c < chains; c++) call;                                                                     \
        restore_subnormals(before);                                                                                    \
        return;                                                                                                        \
    }                                                                                                                  \
    _Pragma("omp parallel for schedule(dynamic, 1) num_threads(threads)") for (int64_t c = 0; c < chains; c++) {       \
        REAL *scratch = (REAL *)plan->scratch + THREAD * plan->scratch_size;                                           \
        unsigned before = flush_subnormals();                                                                          \
        call;                                                                                                          \
        restore_subnormals(before);                                                                                    \
    }

void N(temperance_energies)(const plan_t *plan, const REAL *theta, REAL *grad, double *energy, int64_t chains,
                            int threads) {
    FOR_CHAINS(energy[c] = N(chain)(plan, theta + c * P, grad ? grad + c * P : 0, scratch))
}

void N(temperance_leapfrog)(const plan_t *plan, REAL *theta, REAL *p, REAL *grad, const double *step,
                            const REAL *inverse_mass, int64_t mass_stride, const double *inverse_temperature,
                            int64_t steps, double *energy, double *kinetic, int64_t chains, int threads) {
    FOR_CHAINS(energy[c] = N(leap)(plan, theta + c * P, p + c * P, grad + c * P, inverse_mass + c * mass_stride,
                                   step[c], inverse_temperature[c], steps, kinetic + c, scratch))
}

#include "nuts.c"
#include "microcanonical.c"

#undef THREAD
#undef FOR_CHAINS
