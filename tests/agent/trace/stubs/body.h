/* Functions of a stub must begin as the real ones do, with "push %rbp": any other first instruction of a function is
 * single-stepped by the kernel, which costs many times as much. A call in each body keeps the compiler from dropping it. */
#include <stddef.h>

#define API __attribute__((visibility("default"), noinline))

extern int stub_result;  /* what every call returns */
extern int stub_wait_us; /* how long calls that wait do so */
extern float stub_ms;    /* what events measure */
int stub_work(void);
int stub_wait(void);
int stub_hand_on(int (*driver)(void));

#define CALL(name, ...) API int name(__VA_ARGS__) { return stub_work(); }
#define WAIT(name, ...) API int name(__VA_ARGS__) { return stub_wait(); }
#define NEST(name, driver, ...) API int name(__VA_ARGS__) { return stub_hand_on(driver); }
