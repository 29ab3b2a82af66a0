/* workload.c — five kinds of load, from a seed. */
#include "load/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "load/dataset.h"
#include "load/picture.h"

enum { LANE_INPUT = 1, LANE_OUTPUT = 2, WORDS_PER_BLOCK = 4 };

/* Short and common, so that each is one token with the blank in front of it. */
static const char words[] =
    "about above across after again against air all along also always among animal another answer any around ask back ball bank base bear beautiful "
    "became because become bed been before began begin behind being below best better between big bird black blood blue boat body book both bottom "
    "box boy bring brother brought brown build building built business but call came can car care carry case cat cause cell center century certain "
    "chair chance change chart check child children choose church circle city class clean clear close cloud coast cold color come common company "
    "compare complete consider contain control cook cool copy corn corner correct cost could count country course cover cow create cross crowd cut "
    "dance dark day dead deal death decide deep design develop did difference different direct distance divide doctor does dog dollar done door down "
    "draw dream dress drink drive drop dry during each ear early earth east eat edge effect egg eight either electric else end energy engine enough "
    "enter equal even evening event ever every exact example except experience eye face fact fair fall family famous far farm fast father fear feed "
    "feel feet few field fight figure fill final find fine finger finish fire first fish five flat floor flow flower fly follow food foot force "
    "forest form forward found four free fresh friend front fruit full game garden gas gave general gentle get girl give glad glass gold gone good "
    "government grand grass gray great green ground group grow guess guide gun hair half hand happen happy hard has have head hear heart heat heavy "
    "held help here high hill himself history hit hold hole home hope horse hot hotel hour house how huge human hundred hunt hurry ice idea image "
    "inch include industry instead interest iron island job join joy jump just keep kept key kind king knew know lady lake land language large last "
    "late laugh law lay lead learn least leave led left leg length less letter level lie life lift light like line list listen little live long look "
    "lost lot loud love low machine made main major make man many map mark market mass master material matter may mean measure meat meet men metal "
    "method middle might mile milk million mind mine minute miss modern moment money month moon more morning most mother motion mountain mouth move "
    "much music must name nation natural nature near necessary neck need never new next night nine noise none north nose note nothing notice noun now "
    "number object ocean off offer office often oil old once one only open operate opposite order other our out over own page paint pair paper parent "
    "part party pass past path pattern pay people perhaps person phone picture piece place plain plan plane planet plant play please plural point "
    "poor popular port position possible post pound power practice prepare present press pretty print problem process produce product property "
    "provide public pull push question quick quiet quite race radio rain raise ran range rate rather reach read ready real reason receive record red "
    "region remember repeat report require rest result rich ride right ring rise river road rock roll room root rope rose round row rule run safe "
    "said sail salt same sand sat save saw say scale school science score sea season seat second section see seed seem seen self sell send sense sent "
    "sentence separate serve set settle seven several shall shape share sharp ship shoe shop short should shoulder show side sight sign silver "
    "similar simple since sing single sister sit six size skill skin sky sleep slow small smell smile snow social soft soil soldier solution solve "
    "some son song soon sound source south space speak special speech speed spell spend spoke spot spread spring square stand star start state "
    "station stay steel step stick still stone stood stop store story straight strange stream street strong student study subject success such sudden "
    "sugar suit summer sun supply support sure surface surprise swim symbol system table tail take talk tall teach team tell temperature ten term "
    "test than thank that their them then there these thick thin thing think third this those though thought thousand three through time tiny tire "
    "today together told tone took tool top total touch toward town track trade train travel tree triangle trip trouble truck true try tube turn "
    "twenty two type under unit until upon usual valley value various very view village visit voice vowel wait walk wall want war warm was wash watch "
    "water wave way wear weather week weight well went were west what wheel when where whether which while white who whole whose why wide wife wild "
    "will win wind window winter wish with woman wonder wood word work world would write written wrong year yellow young your";

struct index {
  const char *at[1024];
  int n;
};

/* Where each word begins. */
static void index_words(struct index *x) {
  x->n = 0;
  for (const char *p = words; x->n < (int)ARRAY_LEN(x->at); p += strcspn(p, " ") + 1) {
    x->at[x->n++] = p;
    if (!p[strcspn(p, " ")]) break;
  }
}

char *workload_words(uint64_t seed, uint64_t number, int n) {
  struct index x;
  struct buf b;
  uint32_t r[WORDS_PER_BLOCK];
  index_words(&x);
  buf_init(&b, 0);
  for (int i = 0; i < n; i++) {
    if (i % WORDS_PER_BLOCK == 0) rng_block(seed, number, (uint32_t)(i / WORDS_PER_BLOCK), r);
    const char *word = x.at[(uint64_t)r[i % WORDS_PER_BLOCK] * (uint64_t)x.n >> 32];
    if (i) buf_putc(&b, ' ');
    buf_append(&b, word, strcspn(word, " "));
  }
  return buf_take(&b, NULL);
}

int workload_length(uint64_t seed, uint64_t number, unsigned lane, int n, double ratio) {
  int least = MAX((int)floor(ratio * n), 1);
  return MIN(least + (int)(rng_uniform(seed, number, lane) * (n - least + 1)), n);
}

/* ---- requests ------------------------------------------------------------------------------------------------------------------------ */

/* Numbers of texts: prompts count from 0, what groups begin with from here. */
static const uint64_t SYSTEM_NUMBERS = UINT64_C(1) << 40;

/* Words of its own for request i, without a group. */
static struct load_request words_of(const struct workload_options *o, int i) {
  int input = workload_length(o->seed, (uint64_t)i, LANE_INPUT, o->input_tokens, o->range_ratio);
  return (struct load_request){.text = workload_words(o->seed, (uint64_t)i, input),
                               .input_tokens = input,
                               .output_tokens = workload_length(o->seed, (uint64_t)i, LANE_OUTPUT, o->output_tokens, o->range_ratio),
                               .group = -1,
                               .next = -1};
}

/* Groups take turns, so that neighbours in time are not neighbours in the cache. */
static void make_prefixes(struct workload *w, const struct workload_options *o) {
  w->n_systems = o->groups;
  w->systems = xcalloc((size_t)o->groups, sizeof *w->systems);
  for (int g = 0; g < o->groups; g++) w->systems[g] = workload_words(o->seed, SYSTEM_NUMBERS + (uint64_t)g, o->system_tokens);
  for (int i = 0; i < w->n; i++) {
    w->v[i].group = i % o->groups;
    w->v[i].system = w->systems[i % o->groups];
    w->v[i].input_tokens += o->system_tokens;
  }
}

static void make_turns(struct workload *w, const struct workload_options *o) {
  for (int i = 0; i < w->n; i++) {
    w->v[i].group = i / o->turns;
    w->v[i].turn = i % o->turns;
    w->v[i].next = w->v[i].turn + 1 < o->turns ? i + 1 : -1;
  }
}

static int make_pictures(struct workload *w, const struct workload_options *o, struct err *e) {
  for (int i = 0; i < w->n; i++) {
    w->v[i].pictures = xcalloc((size_t)o->pictures, sizeof *w->v[i].pictures);
    for (int k = 0; k < o->pictures; k++) {
      char *picture = picture_make(o->width, o->height, o->jpeg, o->seed, (uint64_t)i * (uint64_t)o->pictures + (uint64_t)k, e);
      if (!picture) return -1;
      w->v[i].pictures[w->v[i].n_pictures++] = picture;
    }
  }
  return 0;
}

/* A file that has fewer prompts than are asked for begins again. */
static int make_from_file(struct workload *w, const struct workload_options *o, struct err *e) {
  enum { OUTPUT_TOKENS = 256 }; /* where neither the file nor anybody else says */
  struct dataset d;
  if (dataset_read(&d, o->path, o->seed, e)) return -1;
  w->n = o->requests ? o->requests : d.n;
  w->v = xcalloc((size_t)w->n, sizeof *w->v);
  for (int i = 0; i < w->n; i++) {
    const struct dataset_row *row = &d.v[i % d.n];
    int output = o->output_tokens ? o->output_tokens : row->output_tokens ? row->output_tokens : OUTPUT_TOKENS;
    w->v[i] = (struct load_request){.text = xstrdup(row->prompt), .output_tokens = output, .group = -1, .next = -1};
  }
  dataset_free(&d);
  return 0;
}

int workload_make(struct workload *w, const struct workload_options *o, struct err *e) {
  *w = (struct workload){0};
  if (o->kind == WORKLOAD_FILE) return make_from_file(w, o, e);
  w->n = o->requests;
  w->v = xcalloc((size_t)w->n, sizeof *w->v);
  for (int i = 0; i < w->n; i++) w->v[i] = words_of(o, i);
  if (o->kind == WORKLOAD_PREFIX) make_prefixes(w, o);
  if (o->kind == WORKLOAD_TURNS) make_turns(w, o);
  if (o->kind == WORKLOAD_IMAGE && make_pictures(w, o, e)) {
    workload_free(w);
    return -1;
  }
  return 0;
}

void workload_free(struct workload *w) {
  for (int i = 0; i < w->n; i++) {
    for (int k = 0; k < w->v[i].n_pictures; k++) free(w->v[i].pictures[k]);
    free(w->v[i].pictures);
    free(w->v[i].text);
  }
  for (int i = 0; i < w->n_systems; i++) free(w->systems[i]);
  free(w->systems);
  free(w->v);
  *w = (struct workload){0};
}
