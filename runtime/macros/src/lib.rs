//! The attribute `task`, which makes a task of a function. The crate `springtide` exports and
//! documents it, and the generated code names items of that crate.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ItemFn, LitStr, Pat, PathArguments,
    ReturnType, Safety, Signature, Type, parse_quote,
};

/// Makes a task of a function. See the crate `springtide`.
#[proc_macro_attribute]
pub fn task(
    options: proc_macro::TokenStream,
    function: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    expand(options.into(), function.into()).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(options: TokenStream, function: TokenStream) -> Result<TokenStream, Error> {
    let function: ItemFn = syn::parse2(function)?;
    let name = &function.sig.ident;
    let label = task_name(options, name)?;
    check_signature(&function.sig)?;
    let arguments = Arguments::of(&function.sig)?;
    let (output, is_fallible) = output_of(&function.sig.output);

    // A call in the body names the task, and not the function.
    let body_name = format_ident!("__body_of_{name}");
    let mut body = function.clone();
    body.sig.ident = body_name.clone();
    let (docs, others): (Vec<Attribute>, Vec<Attribute>) =
        body.attrs.drain(..).partition(|attribute| attribute.path().is_ident("doc"));
    body.attrs = others;
    body.vis = syn::Visibility::Inherited;

    let visibility = &function.vis;
    let types = &arguments.types;
    let fields = &arguments.names;
    let context = arguments.has_context.then(|| quote!(__context,));
    let call = quote!(#body_name(#context #(#fields),*));
    // An error of any type converts to a `Stop`.
    let result = if is_fallible { quote!(#call?) } else { call };
    // The struct has fields with names, so that the function may have its name, and local variables
    // too.
    Ok(quote_spanned! { name.span() =>
        #(#docs)*
        #[allow(non_camel_case_types)]
        #[derive(::springtide::serde::Serialize, ::springtide::serde::Deserialize)]
        #[serde(crate = "::springtide::serde")]
        #[must_use = "a task computes nothing until a grid or another task runs it"]
        #visibility struct #name {
            #(#fields: #types,)*
        }

        #(#docs)*
        #visibility fn #name(#(#fields: #types),*) -> #name {
            #name { #(#fields),* }
        }

        impl ::springtide::prelude::Task for #name {
            type Output = #output;
            const NAME: &'static str = #label;

            fn run(
                self,
                __context: &::springtide::prelude::Context,
            ) -> ::core::result::Result<#output, ::springtide::prelude::Stop> {
                #body
                let _ = __context;
                let Self { #(#fields),* } = self;
                ::core::result::Result::Ok(#result)
            }
        }
    })
}

/// Returns the name in `name = "..."`, or that of the function.
fn task_name(options: TokenStream, function: &Ident) -> Result<LitStr, Error> {
    let mut label = None;
    let parser = syn::meta::parser(|option| {
        if !option.path.is_ident("name") {
            return Err(option.error("the only option of a task is `name = \"...\"`"));
        }
        label = Some(option.value()?.parse::<LitStr>()?);
        Ok(())
    });
    syn::parse::Parser::parse2(parser, options)?;
    Ok(label.unwrap_or_else(|| LitStr::new(&function.to_string(), function.span())))
}

fn check_signature(signature: &Signature) -> Result<(), Error> {
    let (at, why) = if let Some(keyword) = &signature.asyncness {
        (keyword.span(), "a task computes on a thread of its own: it is not `async`")
    } else if let Safety::Unsafe(keyword) = &signature.safety {
        (keyword.span(), "any node may run a task: it is not `unsafe`")
    } else if !signature.generics.params.is_empty() {
        (signature.generics.span(), "a task has a type of its own: it is not generic")
    } else {
        return Ok(());
    };
    Err(Error::new(at, why))
}

/// The arguments of a task's function.
struct Arguments {
    /// Whether the first one is the context of the running task, which is not sent.
    has_context: bool,
    /// The names of the others; numbered ones for patterns.
    names: Vec<Ident>,
    types: Vec<Type>,
}

impl Arguments {
    fn of(signature: &Signature) -> Result<Self, Error> {
        let mut all = Self { has_context: false, names: Vec::new(), types: Vec::new() };
        for (number, argument) in signature.inputs.iter().enumerate() {
            let FnArg::Typed(argument) = argument else {
                let why = "a task is a function and not a method: write an argument";
                return Err(Error::new(argument.span(), why));
            };
            if number == 0 && is_context(&argument.ty) {
                all.has_context = true;
                continue;
            }
            if matches!(*argument.ty, Type::Reference(_)) {
                let why =
                    "another node may run the task: it owns its arguments, such as a `String`";
                return Err(Error::new(argument.ty.span(), why));
            }
            all.names.push(match &*argument.pat {
                Pat::Ident(name) => name.ident.clone(),
                _ => format_ident!("argument_{number}"),
            });
            all.types.push((*argument.ty).clone());
        }
        Ok(all)
    }
}

/// Whether this is `&Context`.
fn is_context(kind: &Type) -> bool {
    let Type::Reference(reference) = kind else { return false };
    let Type::Path(path) = &*reference.elem else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "Context")
}

/// The output of a task, and whether its function returns it in a `Result`.
fn output_of(returned: &ReturnType) -> (Type, bool) {
    let ReturnType::Type(_, returned) = returned else { return (parse_quote!(()), false) };
    match content_of_result(returned) {
        Some(output) => (output.clone(), true),
        None => ((**returned).clone(), false),
    }
}

/// The type `T` in `Result<T, E>`, or in the `Result<T>` of a library.
fn content_of_result(kind: &Type) -> Option<&Type> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Result")?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first()? {
        GenericArgument::Type(output) => Some(output),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error of a function that is not a task.
    fn refusal(options: TokenStream, function: TokenStream) -> String {
        expand(options, function).unwrap_err().to_string()
    }

    #[test]
    fn functions_that_cannot_be_tasks_are_refused() {
        let none = TokenStream::new;
        assert_eq!(
            refusal(
                none(),
                quote!(
                    async fn square(x: u64) -> u64 {
                        x * x
                    }
                )
            ),
            "a task computes on a thread of its own: it is not `async`"
        );
        assert_eq!(
            refusal(
                none(),
                quote!(
                    unsafe fn square(x: u64) -> u64 {
                        x * x
                    }
                )
            ),
            "any node may run a task: it is not `unsafe`"
        );
        assert_eq!(
            refusal(
                none(),
                quote!(
                    fn same<T>(x: T) -> T {
                        x
                    }
                )
            ),
            "a task has a type of its own: it is not generic"
        );
        assert_eq!(
            refusal(
                none(),
                quote!(
                    fn length(text: &str) -> usize {
                        text.len()
                    }
                )
            ),
            "another node may run the task: it owns its arguments, such as a `String`"
        );
        assert_eq!(
            refusal(
                none(),
                quote!(
                    fn length(&self) -> usize {
                        0
                    }
                )
            ),
            "a task is a function and not a method: write an argument"
        );
        assert_eq!(
            refusal(
                quote!(label = "x"),
                quote!(
                    fn one() -> u8 {
                        1
                    }
                )
            ),
            "the only option of a task is `name = \"...\"`"
        );
        assert_eq!(
            refusal(
                none(),
                quote!(
                    struct Square;
                )
            ),
            "expected `fn`"
        );
    }

    #[test]
    fn the_output_is_what_a_result_contains() {
        let output = |function: TokenStream| {
            let function: ItemFn = syn::parse2(function).unwrap();
            let (output, is_fallible) = output_of(&function.sig.output);
            (quote!(#output).to_string(), is_fallible)
        };
        assert_eq!(
            output(quote!(
                fn f() {}
            )),
            ("()".to_owned(), false)
        );
        assert_eq!(
            output(quote!(
                fn f() -> u8 {
                    1
                }
            )),
            ("u8".to_owned(), false)
        );
        assert_eq!(
            output(quote!(
                fn f() -> Result<u8, Stop> {
                    Ok(1)
                }
            )),
            ("u8".to_owned(), true)
        );
        assert_eq!(
            output(quote!(
                fn f() -> io::Result<u8> {
                    Ok(1)
                }
            )),
            ("u8".to_owned(), true)
        );
        let option = quote!(
            fn f() -> Option<u8> {
                None
            }
        );
        assert_eq!(output(option), ("Option < u8 >".to_owned(), false));
    }
}
