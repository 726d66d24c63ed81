/* grammar.y - the grammar of model.it; actions only build the tree. See LANGUAGE in README.md. */
%code requires {
#include "frontend/parser.h"
}
%code {
#define YYLLOC_DEFAULT(Current, Rhs, N)                                                            \
    ((Current) = (N) ? span_join(YYRHSLOC(Rhs, 1), YYRHSLOC(Rhs, N))                              \
                     : (Span){YYRHSLOC(Rhs, 0).file, YYRHSLOC(Rhs, 0).end, YYRHSLOC(Rhs, 0).end})
#define YYMALLOC mem_alloc
#define YYFREE mem_free

static int itlex(Ast **value, Span *span, Parser *p);
static void iterror(const Span *span, Parser *p, const char *message);

#define NODE(kind, span, name) parser_node(p, AST_##kind, (span), (name))
#define PUSH(parent, child) parser_push(p, (parent), (child))
#define PUSH2(parent, a, b) PUSH(PUSH((parent), (a)), (b))
#define BIN(op, a, b) parser_binary(p, AST_OP_##op, (a), (b))
}

%define api.prefix {it}
%define api.pure full
%define api.value.type {Ast *}
%define api.location.type {Span}
%define parse.error custom
%define parse.lac full
%locations
%param { Parser *p }
%expect 0

%token END 0 "end of file"
%token NL "end of line"
%token NAME "name" NUMBER "number" STRING "string"
%token TRUE "true" FALSE "false"
%token DIM "dim" IMPORT "import" BLOCK "block" MODEL "model"
%token RETURN "return" ASSERT "assert" SCOPE "scope" IF "if" ELSE "else"
%token LBRACE "'{'" RBRACE "'}'" LPAREN "'('" RPAREN "')'" LBRACKET "'['" RBRACKET "']'"
%token COMMA "','" COLON "':'" EQUALS "'='" DOT "'.'" ARROW "'->'"
%token START_FILE START_EXPR

%token PIPE "'|>'" OR "or" AND "and" NOT "not"
%token LT "'<'" GT "'>'" LE "'<='" GE "'>='" EQ "'=='" NE "'!='"
%token PLUS "'+'" MINUS "'-'" STAR "'*'" SLASH "'/'" PERCENT "'%'" SLASH2 "'//'" AT "'@'" POW "'^'"

%left PIPE
%left OR
%left AND
%precedence NOT
%nonassoc LT GT LE GE EQ NE
%left PLUS MINUS
%left STAR SLASH PERCENT SLASH2
%left AT
%precedence NEG
%right POW

%%
start: START_FILE nls items { p->result = $items; }
     | START_EXPR expr nls  { p->result = $expr; }
     ;
nls: %empty | nls NL ;
items: %empty        { $$ = NODE(file, @$, NULL); }
     | items item nls { $$ = $item != NULL ? PUSH($1, $item) : $1; }
     ;
item: NAME LBRACE nls kvs RBRACE NL { $$ = $kvs; $$->text = $NAME->text; $$->span = @NAME; }
    | DIM dimdecls NL               { $$ = $dimdecls; }
    | IMPORT STRING NL              { $$ = NODE(import, @STRING, $STRING); }
    | BLOCK NAME sig body NL        { $$ = PUSH($sig, $body); $$->kind = AST_block; $$->text = $NAME->text; $$->span = @NAME; }
    | MODEL NAME sig body NL        { $$ = PUSH($sig, $body); $$->kind = AST_model; $$->text = $NAME->text; $$->span = @NAME; }
    | error NL                      { $$ = NULL; yyerrok; }
    ;
kvs: %empty     { $$ = NODE(section, @$, NULL); }
   | kvs kv nls { $$ = $kv != NULL ? PUSH($1, $kv) : $1; }
   ;
kv: NAME EQUALS expr NL { $$ = PUSH(NODE(kv, @NAME, $NAME), $expr); $$->span = @NAME; }
  | assert NL           { $$ = $assert; }
  | error NL            { $$ = NULL; yyerrok; }
  ;
dimdecls: dimdecl               { $$ = PUSH(NODE(dims, @$, NULL), $dimdecl); }
        | dimdecls COMMA dimdecl { $$ = PUSH($1, $dimdecl); }
        ;
dimdecl: NAME             { $$ = NODE(dim, @NAME, $NAME); }
       | NAME EQUALS expr { $$ = PUSH(NODE(dim, @NAME, $NAME), $expr); $$->op = AST_OP_assign; $$->span = @NAME; }
       | NAME LE expr     { $$ = PUSH(NODE(dim, @NAME, $NAME), $expr); $$->op = AST_OP_le; $$->span = @NAME; }
       ;
sig: LPAREN params RPAREN             { $$ = PUSH2(NODE(block, @$, NULL), $params, NODE(types, @RPAREN, NULL)); }
   | LPAREN params RPAREN ARROW types { $$ = PUSH2(NODE(block, @$, NULL), $params, $types); }
   ;
params: %empty      { $$ = NODE(params, @$, NULL); }
      | params_some
      ;
params_some: param                   { $$ = PUSH(NODE(params, @$, NULL), $param); }
           | params_some COMMA param { $$ = PUSH($1, $param); }
           ;
param: NAME COLON type   { $$ = PUSH(NODE(param, @NAME, $NAME), $type); $$->span = @NAME; }
     | NAME EQUALS expr  { $$ = PUSH(NODE(param, @NAME, $NAME), $expr); $$->span = @NAME; }
     ;
types: type             { $$ = PUSH(NODE(types, @$, NULL), $type); }
     | types COMMA type { $$ = PUSH($1, $type); }
     ;
type: list      { $$ = PUSH(NODE(type, @$, NULL), $list); }
    | NAME list { $$ = PUSH(NODE(type, @$, $NAME), $list); }
    ;
body: LBRACE nls stmts RBRACE { $$ = $stmts; }
    ;
stmts: %empty         { $$ = NODE(body, @$, NULL); }
     | stmts stmt nls { $$ = $stmt != NULL ? PUSH($1, $stmt) : $1; }
     ;
stmt: member NL
    | names EQUALS expr NL                { $$ = PUSH($names, $expr); }
    | RETURN exprs NL                     { $$ = $exprs; $$->kind = AST_return; $$->span = @$; }
    | assert NL
    | SCOPE NAME body NL                  { $$ = PUSH(NODE(scope, @NAME, $NAME), $body); $$->span = @NAME; }
    | IF expr body NL                     { $$ = PUSH2(NODE(if, @IF, NULL), $expr, $body); $$->span = @IF; }
    | IF expr body[then] ELSE body[other] NL { $$ = PUSH(PUSH2(NODE(if, @IF, NULL), $expr, $then), $other); $$->span = @IF; }
    | error NL                            { $$ = NULL; yyerrok; }
    ;
member: NAME COLON ctor          { $$ = PUSH(NODE(member, @NAME, $NAME), $ctor); $$->span = @NAME; }
      | member NAME[word] expr   { $$ = PUSH($1, PUSH(NODE(suffix, @word, $word), $expr)); $$->span = $1->span; }
      ;
ctor: NAME                    { $$ = NODE(ctor, @NAME, $NAME); }
    | NAME LPAREN args RPAREN { $$ = PUSH(NODE(ctor, @$, $NAME), $args); $$->span = @$; }
    ;
names: NAME             { $$ = PUSH(NODE(assign, @$, NULL), $NAME); }
     | names COMMA NAME { $$ = PUSH($1, $NAME); }
     ;
assert: ASSERT expr              { $$ = PUSH(NODE(assert, @$, NULL), $expr); }
      | ASSERT expr COMMA STRING { $$ = PUSH2(NODE(assert, @$, NULL), $expr, $STRING); }
      ;
exprs: expr             { $$ = PUSH(NODE(tuple, @$, NULL), $expr); }
     | exprs COMMA expr { $$ = PUSH($1, $expr); }
     ;
args: %empty           { $$ = NODE(args, @$, NULL); }
    | args_some
    | args_some COMMA
    ;
args_some: arg                 { $$ = PUSH(NODE(args, @$, NULL), $arg); }
         | args_some COMMA arg { $$ = PUSH($1, $arg); }
         ;
arg: expr                        { $$ = PUSH(NODE(arg, @$, NULL), $expr); }
   | NAME EQUALS expr            { $$ = PUSH(NODE(arg, @NAME, $NAME), $expr); $$->span = @NAME; }
   | list[from] ARROW list[to]   { $$ = PUSH(NODE(arg, @$, NULL), PUSH2(NODE(arrow, @$, NULL), $from, $to)); }
   ;
list: LBRACKET elems RBRACKET { $$ = $elems; $$->span = @$; }
    ;
elems: %empty { $$ = NODE(list, @$, NULL); }
     | elems_some
     | elems_some COMMA
     ;
elems_some: elem                  { $$ = PUSH(NODE(list, @$, NULL), $elem); }
          | elems_some COMMA elem { $$ = PUSH($1, $elem); }
          ;
elem: expr
    | LPAREN group RPAREN { $$ = $group; $$->span = @$; }
    ;
group: NAME[a] NAME[b] { $$ = PUSH2(NODE(group, @$, NULL), $a, $b); }
     | group NAME      { $$ = PUSH($1, $NAME); }
     ;
expr: primary
    | MINUS expr %prec NEG { $$ = PUSH(NODE(unary, @$, NULL), $2); $$->op = AST_OP_neg; }
    | NOT expr             { $$ = PUSH(NODE(unary, @$, NULL), $2); $$->op = AST_OP_not; }
    | expr PIPE expr    { $$ = BIN(pipe, $1, $3); }
    | expr OR expr      { $$ = BIN(or, $1, $3); }
    | expr AND expr     { $$ = BIN(and, $1, $3); }
    | expr LT expr      { $$ = BIN(lt, $1, $3); }
    | expr GT expr      { $$ = BIN(gt, $1, $3); }
    | expr LE expr      { $$ = BIN(le, $1, $3); }
    | expr GE expr      { $$ = BIN(ge, $1, $3); }
    | expr EQ expr      { $$ = BIN(eq, $1, $3); }
    | expr NE expr      { $$ = BIN(ne, $1, $3); }
    | expr PLUS expr    { $$ = BIN(add, $1, $3); }
    | expr MINUS expr   { $$ = BIN(sub, $1, $3); }
    | expr STAR expr    { $$ = BIN(mul, $1, $3); }
    | expr SLASH expr   { $$ = BIN(div, $1, $3); }
    | expr PERCENT expr { $$ = BIN(mod, $1, $3); }
    | expr SLASH2 expr  { $$ = BIN(floordiv, $1, $3); }
    | expr AT expr      { $$ = BIN(matmul, $1, $3); }
    | expr POW expr     { $$ = BIN(pow, $1, $3); }
    ;
primary: NAME
       | NUMBER
       | STRING
       | TRUE                             { $$ = NODE(bool, @$, NULL); $$->u.truth = true; }
       | FALSE                            { $$ = NODE(bool, @$, NULL); }
       | list
       | primary DOT NAME                 { $$ = PUSH(NODE(field, @$, $NAME), $1); }
       | primary LPAREN args RPAREN       { $$ = PUSH2(NODE(call, @$, NULL), $1, $args); }
       | primary LBRACKET elems RBRACKET  { $$ = PUSH2(NODE(index, @$, NULL), $1, $elems); }
       | LPAREN exprs RPAREN              { $$ = $exprs->n == 1 ? $exprs->child[0] : $exprs; if ($exprs->n > 1) $$->span = @$; }
       ;
%%

static int itlex(Ast **value, Span *span, Parser *p) {
    Token t = token_next(p);
    *value = t.node;
    *span = t.span;
    return t.kind;
}

/* Called by bison only when its stack would grow past YYMAXDEPTH. */
static void iterror(const Span *span, Parser *p, const char *message) {
    (void)message;
    diag_error(p->diag, E026, *span, "expression is nested deeper than this compiler follows");
}

static int yyreport_syntax_error(const yypcontext_t *context, Parser *p) {
    yysymbol_kind_t expected[YYNTOKENS];
    const char *names[YYNTOKENS];
    int n = yypcontext_expected_tokens(context, expected, YYNTOKENS);
    if (n < 0) n = 0;
    for (int i = 0; i < n; i++) names[i] = yysymbol_name(expected[i]);
    parse_report(p, p->previous, names, n);
    return 0;
}
